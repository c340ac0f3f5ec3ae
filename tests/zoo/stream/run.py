"""Runs a program of the zoo with the stream backend in the place of gloo, without editing it.

torchrun --nproc-per-node=N tests/zoo/stream/run.py PROGRAM

Named in ZOO_STREAM: the compiled backend. The program runs as __main__, as if it had been started itself.
"""

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

HARNESS = Path(__file__).with_name("harness.py")
NOBODYS = "<torch-stream>"  # no line of the harness may pass for the user's own


def main() -> None:
    """Install the backend and become the program."""
    program = Path(sys.argv[1]).resolve()
    sys.argv = [str(program), *sys.argv[2:]]
    sys.path[0] = str(program.parent)
    harness: dict[str, object] = {"__name__": "zoo_stream_harness"}
    exec(compile(HARNESS.read_text(), NOBODYS, "exec"), harness)
    install = harness["install"]
    assert callable(install)
    install(_load(os.environ["ZOO_STREAM"]))
    module = type(sys)("__main__")
    module.__file__ = str(program)
    sys.modules["__main__"] = module
    exec(compile(program.read_text(), str(program), "exec"), vars(module))


def _load(path: str) -> object:
    import torch  # noqa: F401 - its libraries must be there first

    loader = importlib.machinery.ExtensionFileLoader("zoo_stream", path)
    spec = importlib.util.spec_from_file_location("zoo_stream", path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


if __name__ == "__main__":
    # Compiled once more under a name that is nobody's: the outermost frames of every stack.
    exec(compile(Path(__file__).read_text().split("\nif __name__")[0], NOBODYS, "exec"), globals())
    main()
