"""Runs a program of the zoo with the semantics of NCCL, without a GPU and without editing it.

With gloo a call returns when its collective is done, so the line a host stands at is the line of the hang. With NCCL
it returns when the collective is enqueued. `backend.cpp` is a backend of c10d that behaves so, on a CPU; `harness.py`
puts it in the place of gloo, and `run.py` starts a program with it.
"""

from pathlib import Path

from .build import built

RUN = Path(__file__).with_name("run.py")  # takes the program and its arguments


def environment() -> dict[str, str]:
    """Return what RUN needs in its environment; compiles the backend the first time, in a minute or two."""
    return {"ZOO_STREAM": str(built())}
