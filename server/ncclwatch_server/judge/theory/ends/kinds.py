"""What the end of one rank says by itself: whether it failed, ended well, was told to stop or lost a peer."""

import re
import signal

from ncclwatch.contract.model.rank import CallSite, Ending, RankView

# What a rank says when a peer is gone. The words of one cause vary with timing and transport.
_LOST_PEER = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "connection was likely closed",
    "connection refused",
    "socket closed",
    "remote process exited",
    "timed out waiting",
    "timeout waiting",
    "nccl communicator was aborted",
    "failed to recv, got 0 bytes",
    "application timeout caused pair closure",
)
_STORE_ERROR = re.compile(r"^(DistNetworkError|DistStoreError)|TCPStore")
# What Python raises for the program's own pipes and sockets. No backend of collectives raises these.
_PIPE_ERROR = re.compile(r"^(ConnectionResetError|ConnectionRefusedError|ConnectionAbortedError|BrokenPipeError)")
_BACKEND_ERROR = re.compile(r"^(RuntimeError|Dist\w*Error|AcceleratorError)")
_TIMED_OUT = re.compile(r"time[d ]*out", re.IGNORECASE)
_NUMBER = re.compile(r"\d+(\.\d+)?")
SAME_TIME_S = 1.0  # what clocks of two nodes may differ by
_TOLD_TO_STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_CODES_OF_SIGNALS = frozenset(128 + number for number in _TOLD_TO_STOP)  # of a handler, or a shell, that passes it on


def was_told(ending: Ending) -> bool:
    """Say whether somebody told a rank to stop, other than a launcher that told one that had raised already."""
    if ending.exception:
        return ending.exception.startswith(("KeyboardInterrupt", "SignalException"))
    return ending.signal in _TOLD_TO_STOP or ending.exit_code in _CODES_OF_SIGNALS


def lost_peer(ending: Ending) -> bool:
    """Say whether a rank ended with what is raised at the loss of a peer, or for one that did not come in time."""
    error = ending.exception
    return has_words_of_a_loss(error) or (is_of_a_backend(error) and is_timeout(ending))


def has_words_of_a_loss(error: str) -> bool:
    """Say whether an error has the words of a lost peer, whoever raised it."""
    return any(words in error.lower() for words in _LOST_PEER)


def is_of_a_backend(error: str) -> bool:
    """Say whether a backend of collectives may have raised an error, or the store."""
    return bool(_BACKEND_ERROR.search(error))


def is_of_the_store(error: str) -> bool:
    """Say whether an error is of the store through which ranks find each other."""
    return bool(_STORE_ERROR.search(error))


def is_of_a_pipe(error: str) -> bool:
    """Say whether an error is of a pipe or socket of the program's own."""
    return bool(_PIPE_ERROR.search(error))


def is_timeout(ending: Ending) -> bool:
    """Say whether a rank raised because something took too long."""
    return bool(_TIMED_OUT.search(ending.exception))


def is_clean(ending: Ending) -> bool:
    """Say whether a rank ended with exit code 0, as far as anybody knows."""
    return ending.kind == "exited" or (ending.kind != "signalled" and ending.exit_code == 0)


def says_nothing(ending: Ending) -> bool:
    """Say whether all that is known of an end is an exit code."""
    return bool(ending.exit_code) and not ending.exception and ending.signal is None


def is_mute(ending: Ending) -> bool:
    """Say whether nothing is known of an end that tells a failure from a launcher that needs the rank no longer.

    `ray.kill` ends a worker with exit code 1, whatever it was doing, and so does the end of a trainer of Ray.
    """
    return says_nothing(ending) or ending.kind == "vanished"


def raised_the_same(one: Ending, other: Ending) -> bool:
    """Say whether two ranks raised the same at the same line, but for numbers: of a device, a size, a file."""
    if not one.exception or one.site != other.site:
        return False
    return without_numbers(one.exception) == without_numbers(other.exception)


def without_numbers(error: str) -> str:
    """Return an error with N in the place of each number."""
    return _NUMBER.sub("N", error)


def ended_s_ago(view: RankView) -> float:
    """Return how long ago a rank ended, 0 if it has not."""
    return view.ending.age_s + view.news_age_s if view.ending is not None else 0.0


def has_given_up(view: RankView) -> bool:
    """Say whether a rank caught that a wait took too long, or that a peer was lost, and made no call since."""
    error, since_s = view.last_exception, view.last_exception_s
    of_a_wait = has_words_of_a_loss(error) or _TIMED_OUT.search(error) is not None
    return bool(error) and of_a_wait and not any(op.completed and op.age_s < since_s for op in view.history)


def has_torn_down(view: RankView) -> bool:
    """Say whether a rank has destroyed the groups that it had."""
    newest = {group.name: group.destroyed for group in view.groups}
    return bool(newest) and all(newest.values())


def end_site(view: RankView) -> CallSite | None:
    """Return where a rank ended, else where it made its last call."""
    return (view.ending.site if view.ending is not None else None) or last_site(view)


def last_site(view: RankView) -> CallSite | None:
    """Return where a rank made its last call."""
    return view.history[-1].site if view.history else None
