"""Measures how well the smallest repair names the ranks that were changed: python -m tests.spmd --repair."""
