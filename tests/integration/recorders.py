"""Sees to it that a recorder is there, and says how a rank asks for it."""

import os

from ncclwatch.contract import config
from ncclwatch.native import build, loading


def recorded_by(recorder: str) -> dict[str, str]:
    """Return the settings by which ranks use a recorder: python, native, or "hot": Python with a hot path in C."""
    if recorder == "native" and loading.where() is None:
        build.build()
    if recorder == "hot" and loading.where_alone() is None:
        build.build_alone()
    named = os.environ.get(config.ENV_NATIVE_DIR)
    place = {config.ENV_NATIVE_DIR: named} if named else {}
    return place | {config.ENV_NATIVE: {"python": "0", "hot": "without-torch", "native": "1"}[recorder]}
