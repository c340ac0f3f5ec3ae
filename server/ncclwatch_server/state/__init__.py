"""Keeps what the ranks of one job last said, as tables, and what has been learned of its waits."""
