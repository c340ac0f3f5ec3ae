"""`python -m tests.fuzz.guided SURFACE [options of libFuzzer]`: the same check, led by what of our code is reached.

It needs atheris (`pip install atheris`: 35 MB, 62 MB installed), which is no dependency of ours. An input that breaks
something is written by libFuzzer as `crash-...`; put it into `corpus/SURFACE` under a name that says what it did.
"""

import importlib
import logging
import random
import sys
import tempfile
from pathlib import Path

import atheris


def main() -> None:
    """Run until something breaks, or libFuzzer's limit (-max_total_time=600, say) is reached."""
    name, *options = sys.argv[1:]
    with atheris.instrument_imports(include=["ncclwatch", "ncclwatch_agent", "ncclwatch_server"]):
        this = importlib.import_module(f"tests.fuzz.surfaces.{name}").SURFACE
    logging.disable(logging.CRITICAL)

    def once(data: bytes) -> None:
        this.check(data)

    def mutate(data: bytes, size_max: int, seed: int) -> bytes:
        """Change an input as this surface's own mutation does, half of the time."""
        if seed % 2:
            return bytes(atheris.Mutate(data, size_max))
        return bytes(this.mutate(random.Random(seed), data))[:size_max]

    with tempfile.TemporaryDirectory(prefix="ncclwatch-fuzz-") as seeds:
        for number, data in enumerate([*this.seeds, *(path.read_bytes() for path in this.corpus)]):
            Path(seeds, str(number)).write_bytes(data)
        atheris.Setup([sys.argv[0], *options, "-max_len=65536", seeds], once, custom_mutator=mutate)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
