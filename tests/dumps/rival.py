"""Asks torch's own analyzer of Flight Recorder dumps (`torchfrtrace`) about the same files.

It prints a paragraph for each collective that it could not match, with "missing ranks" or a "Culprit rank". Which of
these is meant as the answer it does not say, so there are three readings, and the one that is nearest to the truth
counts: those of the first paragraph, those of all, and those that all paragraphs have in common.
"""

import contextlib
import gc
import io
import logging
import re
from pathlib import Path

from tests.dumps.score import Said

_PARAGRAPH = re.compile(r"missing ranks: \{([\d, ]+)\}|((?:Culprit rank \d+.*)+)")
_CULPRIT = re.compile(r"Culprit rank (\d+)")


def by_torchfrtrace(folder: Path) -> tuple[Said, ...]:
    """Return the readings of its answer; it reads pickles only."""
    from torch.distributed.flight_recorder.fr_trace import main

    shown = io.StringIO()
    handler = logging.StreamHandler(shown)
    logger = logging.getLogger("Flight Recorder")
    kept, logger.handlers = logger.handlers, [handler]
    try:
        with contextlib.redirect_stdout(shown):
            main([str(folder), "-p", "nccl_trace_rank_"])
    except (AssertionError, LookupError, TypeError, ValueError) as error:
        return (Said(causes=(f"failed: {type(error).__name__}",)),)
    finally:
        logger.handlers = kept
        gc.enable()  # it turns it off, as its process ends soon
    return readings(shown.getvalue())


def readings(text: str) -> tuple[Said, ...]:
    """Return what its words may mean."""
    found = [
        frozenset(map(int, missing.split(",") if missing else _CULPRIT.findall(culprits)))
        for missing, culprits in _PARAGRAPH.findall(text)
    ]
    if not found:
        return (Said(),)
    meant = {found[0], frozenset.union(*found), frozenset.intersection(*found)}
    return tuple(Said(certain=ranks, causes=("named",)) for ranks in sorted(meant, key=sorted))
