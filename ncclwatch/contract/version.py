"""The version of ncclwatch: one for rank, agent and server."""

VERSION = "0.1.0"

# The oldest and the newest torch that the tests have been run with.
TORCH_OLDEST = (2, 6)
TORCH_NEWEST = (2, 15)
