"""Which version of ncclwatch is this? One for rank, agent and server."""

VERSION = "0.1.0"
