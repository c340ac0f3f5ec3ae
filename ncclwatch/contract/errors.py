"""What can go wrong in ncclwatch itself, told so that the reader knows what to type next."""


class NcclwatchError(Exception):
    """Anything ncclwatch could not do. The message says what was tried, what happened and what to do."""


class RingError(NcclwatchError):
    """A ring file that cannot be read: garbage, truncated, or of another version."""


class WireError(NcclwatchError):
    """A message from the other side that breaks the protocol."""


class ConfigError(NcclwatchError):
    """A setting that cannot be used."""
