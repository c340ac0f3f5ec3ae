"""The server of ncclwatch: takes the agents' news, judges every second, and says what is wrong."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("ncclwatch")
except PackageNotFoundError:  # run from a source tree that nobody installed
    VERSION = "0+unknown"
