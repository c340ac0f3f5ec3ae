"""Reads what a rank has found out about itself from the one JSON text in its ring that holds it.

Written by `rank.checks.facts` (the word FACTS of the ring is its id), and nowhere else. Every field may be missing:

    {"device": {"index": int, "uuid": str, "chosen": int, "used": bool, "count": int, "visible": str | null,
                "local_rank": int, "backend": str, "sharing": str},
     "rng": {"call": str, "saved": int, "present": int, "own": int, "file": str, "line": int, "function": str,
             "at_ns": int of CLOCK_MONOTONIC},
     "thread": {"name": str, "exception": str, "file": str, "line": int, "function": str,
                "at_ns": int of CLOCK_MONOTONIC},
     "keys": {"set": [str]}}

What each means is said at `DeviceView`, `RngRestore`, `EndedThread` and `RankView.keys_set`. The text is the rank's and
may be anything: what does not fit is left out.
"""

from typing import NamedTuple

from ncclwatch.contract import config, foreign_json
from ncclwatch.contract.model.devices import DeviceView
from ncclwatch.contract.model.rank import CallSite, EndedThread, RngRestore

DEVICE = "device"
RNG = "rng"
THREAD = "thread"
KEYS = "keys"
KEYS_MAX = 64  # that are read


class Facts(NamedTuple):
    """The facts of one rank. `rng_ns`: when its random states were to be restored; `thread_ns`: when it ended."""

    device: DeviceView | None = None
    rng: RngRestore | None = None
    rng_ns: int = 0
    thread: EndedThread | None = None
    thread_ns: int = 0
    keys: tuple[str, ...] = ()


def parse(text: str) -> Facts:
    """Return the facts that a text holds; no facts for a text that is no JSON object. Never raises."""
    found = foreign_json.read(text) if text else {}
    if not isinstance(found, dict):
        return Facts()
    rng, thread, keys = found.get(RNG), found.get(THREAD), found.get(KEYS)
    set_ = keys.get("set") if isinstance(keys, dict) else None
    return Facts(
        device=_device(found.get(DEVICE)),
        rng=_rng(rng) if isinstance(rng, dict) else None,
        rng_ns=_number(rng.get("at_ns")) if isinstance(rng, dict) else 0,
        thread=_thread(thread) if isinstance(thread, dict) else None,
        thread_ns=_number(thread.get("at_ns")) if isinstance(thread, dict) else 0,
        keys=tuple(map(_text, set_[:KEYS_MAX])) if isinstance(set_, list) else (),
    )


def _device(found: object) -> DeviceView | None:
    if not isinstance(found, dict):
        return None
    visible = found.get("visible")
    return DeviceView(
        index=_number(found.get("index"), -1),
        uuid=_text(found.get("uuid")),
        chosen=_number(found.get("chosen"), -1),
        used=found.get("used") is True,
        count=_number(found.get("count")),
        visible=_text(visible) if isinstance(visible, str) else None,
        local_rank=_number(found.get("local_rank"), -1),
        backend=_text(found.get("backend")),
        sharing=_text(found.get("sharing")),
    )


def _rng(found: dict[object, object]) -> RngRestore:
    return RngRestore(
        call=_text(found.get("call")),
        saved=_number(found.get("saved")),
        present=_number(found.get("present")),
        own=_number(found.get("own"), -1),
        site=_site(found),
    )


def _thread(found: dict[object, object]) -> EndedThread:
    return EndedThread(name=_text(found.get("name")), exception=_text(found.get("exception")), site=_site(found))


def _site(found: dict[object, object]) -> CallSite | None:
    file, function = _text(found.get("file")), _text(found.get("function"))
    return CallSite(file=file, line=_number(found.get("line")), function=function) if file else None


def _text(value: object) -> str:
    return value[: config.TEXT_CHARS_MAX] if isinstance(value, str) else ""


def _number(value: object, otherwise: int = 0) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise
