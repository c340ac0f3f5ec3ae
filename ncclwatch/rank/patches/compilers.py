"""Keeps torch.compile out of our code.

Where a compiled function of the user's ends a graph and goes on in Python, dynamo looks at each function that is called
from there. It leaves torch's own files alone, and would compile ours: seconds of work, warnings about what it cannot
trace, and compiled again whenever a number of ours has changed.
"""

from pathlib import Path

from ncclwatch.rank import torch_versions
from ncclwatch.rank.patches import forwards
from ncclwatch.rank.patches.imports import when_imported
from ncclwatch.rank.patches.patching import Patches

_SEEN = Path(forwards.__file__)


def install(patches: Patches) -> None:
    """See to it that dynamo skips our files, once this job imports dynamo."""
    when_imported(patches, torch_versions.DYNAMO_RULES, lambda: _skip(patches))


def _skip(patches: Patches) -> None:
    patches.on_restore(torch_versions.skip_in_dynamo(_places(_SEEN.parents[2], _SEEN)))


def _places(directory: Path, seen: Path) -> list[str]:
    """Return what the paths of all files below a directory begin with, but for the one that may be seen."""
    if directory not in seen.parents:
        return [f"{directory}/"]
    found = []
    for path in sorted(directory.iterdir()):
        if path.is_dir():
            found += _places(path, seen)
        elif path.suffix == ".py" and path != seen:
            found.append(str(path))
    return found
