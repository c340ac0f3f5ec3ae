"""Notes when the fault began: the programs write the time, the runner reads it.

Nothing is written unless the environment names a file in ZOO_ONSET.
"""

import os
import tempfile
import time
from pathlib import Path


def mark() -> None:
    """Note the time of the first call in the whole job."""
    _write(first_wins=True)


def mark_latest() -> None:
    """Note the time of the last call in the whole job."""
    _write(first_wins=False)


def _write(*, first_wins: bool) -> None:
    name = os.environ.get("ZOO_ONSET")
    if not name:
        return
    target = Path(name)
    handle, draft = tempfile.mkstemp(prefix=".onset-", dir=target.parent)
    with os.fdopen(handle, "w") as file:
        file.write(repr(time.time()))
    if not first_wins:
        os.replace(draft, target)
        return
    try:
        # A link is created whole or not at all, and fails if the name is taken.
        os.link(draft, target)
    except FileExistsError:
        pass
    finally:
        os.unlink(draft)
