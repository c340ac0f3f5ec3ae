"""Reads the files that a hung job left behind: dumps, rings, stacks and logs become one report.

A file is parsed, reduced to what a verdict may need and dropped, one after the other; only where ranks
disagree are whole views made, and those go to the same judge that watches live jobs.
"""
