"""What keeps a file from being read."""

from ncclwatch.contract.errors import NcclwatchError


class Unreadable(NcclwatchError):
    """One file that cannot be used. The message says why; the others are read all the same."""


class NothingToAnalyze(NcclwatchError):
    """None of the given paths holds anything that could be analyzed."""
