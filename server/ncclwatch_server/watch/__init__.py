"""Looks at each job when it is due, judges it, and tells what was found."""
