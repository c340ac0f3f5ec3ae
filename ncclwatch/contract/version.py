"""Which version of ncclwatch is this? One for rank, agent and server."""

VERSION = "0.1.0"

# The versions of torch that this is made for, and that its tests have been run with.
TORCH_OLDEST = (2, 6)
TORCH_NEWEST = (2, 15)
