"""Judges random SPMD programs of which it is known what is so: who waits for ever, and which ranks were changed.

`generator` draws a program, `faults` changes some ranks' part of it, `machine` runs it as c10d would, `oracle` says
which waits end, `views` shows moments of the run as agents would, and `check` holds the judge against all that. What it
gets wrong is made small by `shrink` and written as a scenario by `scenario`. `repair` measures how well the smallest
repair names the rank that was changed.
"""
