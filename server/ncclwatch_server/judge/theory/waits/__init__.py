"""Finds who waits for whom, in which order a device works, and which waits can never end."""
