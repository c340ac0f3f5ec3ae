"""Scores what ncclwatch said about a program against what is true of it, and sums up the whole zoo."""
