"""Makes the environment in which a script is watched that attaches to nothing by itself."""

import os
from collections.abc import Mapping
from pathlib import Path

DIRECTORY = Path(__file__).parents[2] / "inject"  # where `sitecustomize` lies
NOBODY = (
    "ncclwatch: --inject found no rank: no Python process of the command has called init_process_group with "
    "PYTHONPATH as it was given (python -I and -E ignore it), or ncclwatch is not installed for that Python.\n"
)


def injected(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which every Python process looks whether it is a rank."""
    rest = environ.get("PYTHONPATH", "")
    return {**environ, "PYTHONPATH": f"{DIRECTORY}{os.pathsep}{rest}" if rest else str(DIRECTORY)}
