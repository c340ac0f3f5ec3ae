"""Is a torchrun or a rank to whoever started it, while the real one is forked elsewhere: see `torch_once`."""

import os
import pickle
import signal
import socket
import sys
import types


def main() -> None:
    """Ask for what is to be forked, pass signals on to it, and end as it ended."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(sys.argv[1])
        words = [sys.executable, *sys.argv[2:]]
        told = pickle.dumps((words, dict(os.environ), os.getcwd()))  # noqa: PTH109 - pathlib costs more than all else here
        socket.send_fds(server, [told], [0, 1, 2])
        answers = server.makefile()
        pid = int(answers.readline())

        def pass_on(number: int, _: types.FrameType | None) -> None:
            os.kill(pid, number)

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, pass_on)
        ended = answers.readline()
    code = int(ended or 1)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


main()
