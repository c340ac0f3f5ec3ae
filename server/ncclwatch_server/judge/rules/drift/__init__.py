"""Tells in what the ranks of a job were not set up alike, and what comes of it."""
