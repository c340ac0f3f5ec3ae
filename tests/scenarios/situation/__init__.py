"""Reads the language of scenarios."""

from tests.scenarios.situation.situation import Situation

__all__ = ["Situation"]
