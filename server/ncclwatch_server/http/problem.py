"""What does a refusal look like? One shape for every route, so that a client can show the sentence."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a request was not answered."""

    detail: str
