"""Puts into words what is so: places, waits, evidence. Every rule uses these, and they know no cause."""
