"""Where does the agent say what it does? In a bounded file beside the rings, or nowhere if that cannot be written."""

import logging
import logging.handlers
import sys
from pathlib import Path

LOG_BYTES_MAX = 1024 * 1024
LOG_NAME = "agent.log"

log = logging.getLogger("ncclwatch.agent")


def open_log(runtime_dir: str, *, terminal: bool) -> None:
    """Send what is logged to agent.log, and to standard error where somebody watches.

    A directory that is read-only or full costs the log, never the agent.
    """
    logging.raiseExceptions = False  # a full disk must not print a traceback for each line
    log.setLevel(logging.INFO)
    log.propagate = False
    line = logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr)] if terminal else []
    try:
        path = Path(runtime_dir) / LOG_NAME
        handlers.append(logging.handlers.RotatingFileHandler(path, maxBytes=LOG_BYTES_MAX, backupCount=1))
    except OSError as error:
        if terminal:
            print(f"ncclwatch-agent: no log: {error}", file=sys.stderr)  # noqa: T201 - there is no log to say it in
    for handler in handlers or [logging.NullHandler()]:
        handler.setFormatter(line)
        log.addHandler(handler)
