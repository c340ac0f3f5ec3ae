"""Training jobs that were never run: their layout, their program, their faults, and what their nodes would report.

`layout` says which ranks share which groups, `program` what a rank does in them, `faults` what goes wrong; `run`
lets all ranks go until nothing moves; `fleet` and `sights` say what the agents of such a job send, digests and
views. A rank that is asked for its view has a real ring for it (`rings`). Everything follows from the arguments: the
same ones give the same bytes.
"""
