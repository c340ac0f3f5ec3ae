"""Judges what the files of a job say, in its own way."""
