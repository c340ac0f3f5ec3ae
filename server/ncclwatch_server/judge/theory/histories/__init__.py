"""Lays the histories of ranks beside each other: who called what, where, and where they first differed."""
