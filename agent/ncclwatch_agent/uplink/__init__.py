"""Speaks with servers: the connection, the proof of whose it is, and what waits for it."""
