"""The one shape of every refusal, so that a client can show the sentence."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a request was not answered."""

    detail: str
