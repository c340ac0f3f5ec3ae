"""Finds the rank that makes the others wait, although nothing hangs. Pure functions over windows of a running job.

A collective that needs all of its members ends for all of them at once. So whoever was blocked in it for the
shortest time came last, by its own clock alone: no two clocks are compared. `windows` cuts the blocked time of all
ranks at the same operations, `scores` finds the rank that waits less than its like, `kinds` says what kept it,
`pace` sees all steps become slower at one moment, and `tracker` keeps the bounded state of one job.
"""
