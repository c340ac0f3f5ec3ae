"""Looks after the process itself: its memory, threads, log and end."""
