"""Runs the command line as a user does."""

import os
import subprocess
import sys


def ncclwatch(
    *arguments: str, server: str = "", module: str = "ncclwatch", **environ: str
) -> "subprocess.CompletedProcess[str]":
    """Run `ncclwatch`, or a command of another module, to its end."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("NCCLWATCH_")}
    if server:
        environ["NCCLWATCH_SERVER"] = server
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env={**clean, **environ}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
