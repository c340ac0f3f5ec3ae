"""Tells whether any process was born on this node since a look, so that nobody looks for new children in vain.

/proc/loadavg ends with the newest process or thread of the PID namespace of who reads it. Where that is not so (some
sandboxes give a constant, some containers an old value), or /proc is another namespace's, nothing is told.
"""

import functools
import os
import threading
from pathlib import Path

from ncclwatch_agent.process.procfs import ProcFile


class Births:
    """The newest process or thread of this PID namespace."""

    def __init__(self, path: str = "/proc/loadavg") -> None:
        self._file = ProcFile(path)
        self._truthful = self._is_truthful()

    @classmethod
    @functools.cache
    def of_this_node(cls) -> "Births":
        """Return the one that all who look share."""
        return cls()

    def newest(self) -> int:
        """Return its number, another one as soon as one more is born; 0: nobody can tell."""
        return self._read() if self._truthful else 0

    def _read(self) -> int:
        last = self._file.read().split()[-1:]
        return int(last[0]) if last and last[0].isdigit() else 0

    def _is_truthful(self) -> bool:
        before = self._read()
        born = threading.Thread(target=int)
        born.start()
        after = self._read()
        born.join()
        try:
            own = str(Path("/proc/self").readlink()) == str(os.getpid())
        except OSError:
            return False
        return own and 0 < before != after > 0

    def close(self) -> None:
        """Give the descriptor back."""
        self._file.close()
