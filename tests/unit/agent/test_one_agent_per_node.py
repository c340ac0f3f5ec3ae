"""An agent goes on by itself, whatever the rank that started it had set for its own threads."""

import os
import subprocess
import sys

PROGRAM = """
import os, signal, sys
from ncclwatch_agent import one_agent_per_node

signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
one_agent_per_node.daemonise()
os.write(int(sys.argv[1]), str(len(signal.pthread_sigmask(signal.SIG_BLOCK, ()))).encode())
"""


def test_an_agent_takes_the_signals_that_the_thread_of_its_rank_has_blocked():
    read, write = os.pipe()
    subprocess.run([sys.executable, "-c", PROGRAM, str(write)], pass_fds=(write,), timeout=60, check=True)
    os.close(write)
    with os.fdopen(read, "rb") as said:
        assert said.read() == b"0"
