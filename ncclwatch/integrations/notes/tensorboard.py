"""Notes a verdict as text in the TensorBoard files that the script writes."""

import gc
import sys
from collections.abc import Iterator
from typing import Any, Protocol

from ncclwatch.contract.on_hang.notice import HangVerdict
from ncclwatch.integrations.notes.words import LABEL, text

_MODULES = ("torch.utils.tensorboard.writer", "tensorboardX.writer")
WRITERS_MAX = 16


class TensorBoard:
    """The `SummaryWriter`s that exist and have a file open."""

    name = "TensorBoard"

    def note(self, verdict: HangVerdict, step: int) -> None:
        """Add a text at this step, and bring it to the disk."""
        for writer in list(_writers())[:WRITERS_MAX]:
            writer.add_text(LABEL, text(verdict), global_step=step)
            writer.flush()


class _Writer(Protocol):
    all_writers: object  # None: it was closed, and would open another file

    def add_text(self, tag: str, text_string: str, global_step: int) -> None: ...
    def flush(self) -> None: ...


def _writers() -> Iterator[_Writer]:
    """Yield the writers of all classes. Nobody keeps a list of them: the collector knows who refers to their class."""
    for name in _MODULES:
        found = getattr(sys.modules.get(name), "SummaryWriter", None)
        classes = [found] if isinstance(found, type) else []
        while classes:
            kind = classes.pop()
            classes += kind.__subclasses__()
            found_here: list[Any] = [each for each in gc.get_referrers(kind) if type(each) is kind]
            yield from (each for each in found_here if each.all_writers)
