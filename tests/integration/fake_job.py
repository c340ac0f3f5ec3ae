"""A user's command that hangs, goes on or crashes, as far as ncclwatch can see.

python -m tests.integration.fake_job hang|recover|crash|stubborn
"""

import os
import signal
import subprocess
import sys
import time

from ncclwatch.contract.model.rank import Ending
from ncclwatch.contract.wire import CommandKind
from ncclwatch.rank import identity
from tests.integration.fake_agent import FakeAgent, until

STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("stubborn", flush=True)
while True: time.sleep(1)
"""


def main() -> int:
    """Behave as told."""
    mode = sys.argv[1]
    attempt = identity.attempt(os.environ)
    job = FakeAgent(os.environ["NCCLWATCH_SERVER"], job=os.environ["NCCLWATCH_JOB"], attempt=attempt)
    until(lambda: job.progress > 2)
    if mode == "crash":
        job.end(0, Ending(kind="crashed", exit_code=1, exception="ValueError: no"))
        job.end(1, Ending(kind="signalled", signal=signal.SIGTERM))
        job.gone()
        job.leave()  # in order, at once: the server has not read the views by then
        return 1
    if mode == "stubborn":
        subprocess.Popen([sys.executable, "-c", STUBBORN])
    job.hang(1)
    if mode == "recover":
        until(lambda: job.asked(CommandKind.STACKS))
        until(lambda: len(job.asked(CommandKind.INSPECT)) > 5)
        job.end(0, Ending(kind="exited", exit_code=0))
        job.end(1, Ending(kind="exited", exit_code=0))
        job.gone()
        return 0
    while True:
        time.sleep(1)


if __name__ == "__main__":
    sys.exit(main())
