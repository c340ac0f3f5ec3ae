"""Measures how soon /healthz answers while two agents send the longest messages of each kind, as fast as they can.

    python -m tests.bench.largest [KIND...]    prints a line for each kind

Each message is as long as its kind may be, and is made of nothing but the smallest parts that there are. Some of each
kind are taken, and some are refused for what they say.
"""

import contextlib
import json
import math
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ncclwatch.contract import config, digests, wire
from ncclwatch.contract.model.rank import ProcessState, ProcessView, RankView
from tests.bench.hostile import TOKEN, Target, _head, _health_s, _line, _ours, _push
from tests.bench.processes import resident_mb

RANKS = 64  # of each of the two agents
SECONDS = 6.0
LINES = 2
NOTHING = "nothing"


def _full(kind: str, begin: str, part: Callable[[int], str], end: str) -> bytes:
    """Return a message of so many equal parts that no further one may come."""
    room = config.KIND_BYTES_MAX[kind] - len(begin) - len(end)
    found: list[str] = []
    while room > 0:
        found.append(part(len(found)))
        room -= len(found[-1]) + 1
    return f"{begin}{','.join(found[:-1])}{end}".encode()


def _view(rank: int) -> dict[str, object]:
    view = RankView(
        rank=rank, local_rank=rank, host="h", pid=1, device="", world_size=2 * RANKS, local_world_size=RANKS, attempt=0,
        process=ProcessView(state=ProcessState.RUNNING), pulse_age_s=0.0, initialised=True,
    )  # fmt: skip
    (found,) = json.loads(wire.encode(wire.Views(index=0, ranks=(view,))))["ranks"]
    return {name: value for name, value in found.items() if value not in (None, [])}


def _views(first: int) -> dict[str, bytes]:
    def of(name: str, element: str) -> bytes:
        known = json.dumps({**_view(first), "process": {"state": "running"}, name: []}, separators=(",", ":"))
        begin, end = known.split(f'"{name}":[]')
        return _full("views", f'{{"type":"views","index":0,"ranks":[{begin}"{name}":[', lambda _: element, f"]{end}]}}")

    small = json.dumps({**_view(first), "process": {"state": "running"}}, separators=(",", ":"))
    return {
        "views: operations": of("history", '{"group":"","seq":1,"op":"send"}'),
        "views: routes": of("routes", "[]"),
        "views: groups": of(
            "groups", '{"name":"","desc":"","ranks":[300],"enqueued":1,"completed":1,"prefix_hash":1,"runs":[[1,1,1]]}'
        ),
        "views: ranks": _full("views", '{"type":"views","index":0,"ranks":[', lambda _: small, "]}"),
    }


def _facts(first: int) -> dict[str, bytes]:
    return {
        "facts: ranks": _full("facts", '{"type":"facts","index":0,"alike":[[[', lambda _: f"{first}", "],[[]]]]}"),
        "facts: joined": _full(
            "facts", '{"type":"facts","index":0,"alike":[],"joined":[', lambda n: f"{first + n % RANKS}", "]}"
        ),
        "facts: kinds": _full(
            "facts", '{"type":"facts","index":0,"alike":[', lambda n: f'[[{first}],[[["debug","{n}"]]]]', "]}"
        ),
        "facts: values": _full(
            "facts", f'{{"type":"facts","index":0,"alike":[[[{first}],[[', lambda _: '["",""]', "]]]]}"
        ),
    }


def _several(first: int) -> dict[str, bytes]:
    """Return messages of elements each of which is as long as one may be, and of as many elements as there may be."""

    def of(kind: str, begin: str, element: str, part: str, *, bytes_max: int = config.ELEMENT_BYTES_MAX) -> bytes:
        before, after = element.split("...")
        inside = ",".join([part] * ((bytes_max - len(element)) // (len(part) + 1)))
        return _full(kind, begin, lambda _: f"{before}{inside}{after}", "]}")

    small = json.dumps({**_view(first), "routes": ["..."]}, separators=(",", ":")).replace('"..."', "...")
    site = '{"file":"","line":1,"function":""}'
    route = f"[{','.join([site] * 15)}]"
    group = '{"name":"","enqueued":1,"started":1,"completed":1,"newest":[{"seq":1,"name":""}]}'
    return {
        "views, taken": of(
            "views", '{"type":"views","index":0,"ranks":[', small, route, bytes_max=config.VIEW_BYTES_MAX
        ),
        "views, one": of("views", '{"type":"views","index":0,"ranks":[', small, route, bytes_max=60_000),
        "loops, taken": of(
            "loops",
            '{"type":"loops","index":0,"ranks":[',
            f'[{first},"",1,1,1,true,true,[...]]',
            '["",1]',
            bytes_max=3000,
        ),
        "parameters, taken": of(
            "parameters", '{"type":"parameters","index":0,"key":["a","b"],"ranks":[', f"[{first},[...]]", '""'
        ),
        "testimonies, taken": of(
            "testimonies", '{"type":"testimonies","index":0,"ranks":[', f'{{"rank":{first},"groups":[...]}}', group
        ),
        "stacks, taken": of(
            "stacks",
            '{"type":"stacks","index":0,"dumps":[',
            f'{{"rank":{first},"threads":[["",[...]]]}}',
            '{"function":"","file":"","line":1}',
        ),
        "facts, taken": of(
            "facts",
            '{"type":"facts","index":0,"alike":[',
            f'[[{first}],[[],[["","",[...],"","",1]]]]',
            '""',
            bytes_max=7_000,
        ),
    }


def payloads(first: int) -> dict[str, bytes]:
    """Return the longest messages by name, of ranks from `first` on."""
    frames = ",".join(['{"function":"","file":"","line":1}'] * 100)
    ranks = [digests.RANK_ROW.pack(*(0,) * len(digests.RANK_FIELDS))] * RANKS
    ranks = [(first + n).to_bytes(4, "little") + row[4:] for n, row in enumerate(ranks)]
    groups = [
        (first + n).to_bytes(4, "little") + digests.GROUP_ROW.pack(0, 0, m + 1, 1, 1, 0, 1)[4:]
        for n in range(RANKS)
        for m in range(config.GROUPS_MAX)
    ]
    head = digests.DIGEST_HEAD.pack(digests.DIGEST_MAGIC, config.PROTOCOL, 0, 0, len(ranks), len(groups))
    operation = '{"seq":1,"name":""}'
    group = f'{{"name":"","enqueued":1,"started":1,"completed":1,"newest":[{",".join([operation] * 100)}]}}'
    several = _several(first)
    return {
        **several,
        **_facts(first),
        "loops: buckets": _full(
            "loops",
            f'{{"type":"loops","index":0,"ranks":[[{first},"",1,1,1,true,true,[',
            lambda _: '["",1]',
            "]]]}",
        ),
        "loops: ranks": _full(
            "loops", '{"type":"loops","index":0,"ranks":[', lambda n: f'[{first},"",{n},1,1,true,true]', "]}"
        ),
        "parameters": _full(
            "parameters",
            f'{{"type":"parameters","index":0,"key":["a","b"],"ranks":[[{first},[',
            lambda _: '""',
            "]]]}",
        ),
        "testimonies: groups": _full(
            "testimonies",
            f'{{"type":"testimonies","index":0,"ranks":[{{"rank":{first},"groups":[',
            lambda _: group,
            "]}]}",
        ),
        "testimonies: seen": _full(
            "testimonies",
            f'{{"type":"testimonies","index":0,"ranks":[{{"rank":{first},"seen":{{',
            lambda n: f'"{n}":1',
            "}}]}",
        ),
        "stacks: threads": _full(
            "stacks",
            f'{{"type":"stacks","index":0,"dumps":[{{"rank":{first},"threads":[',
            lambda _: f'["",[{frames}]]',
            "]}]}",
        ),
        "announce": _full(
            "announce",
            '{"type":"announce","index":1,"job":"other","instance":"i","attempt":0,"world_size":128,"terminal":false,'
            '"ranks":[',
            lambda n: f"{first + n % RANKS}",
            "]}",
        ),
        **_views(first),
        "digest": head + b"".join(ranks) + b"".join(groups),
    }


def _opening(number: int) -> bytes:
    said = (
        wire.Hello(protocol=config.PROTOCOL, agent=f"a{number}", host=f"h{number}", version="1"),
        wire.Announce(
            index=0, job="j", instance="i", attempt=0, world_size=LINES * RANKS,
            ranks=tuple(range(number * RANKS, (number + 1) * RANKS)), terminal=False,
        ),
    )  # fmt: skip
    return b"".join(_head(len(data)) + data for data in map(wire.encode, said))


def send(target: Target, name: str, seconds: float) -> float:
    """Let two programs send the longest messages of one name for so long. Returns how many were taken."""
    command = [sys.executable, "-m", "tests.bench.largest", "send", str(target.port), name, str(seconds)]
    sending = [
        subprocess.Popen([*command, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for number in range(LINES)
    ]
    for each in sending:
        assert each.stdout is not None
        each.stdout.readline()  # its message is made
    return float(sum(int(each.communicate("go\n")[0]) for each in sending))


def _send(port: int, name: str, seconds: float, number: int) -> int:
    """Send one message again and again. Whoever is let go comes again."""
    target = Target(name="", port=port, pid=0, health="", guarded="")
    data = b"" if name == NOTHING else payloads(number * RANKS)[name]
    data = _head(len(data), 0x82 if name == "digest" else 0x81) + data
    print("ready", flush=True)
    sys.stdin.readline()
    until, sent = time.monotonic() + seconds, 0
    if name == NOTHING:
        time.sleep(seconds)
    while time.monotonic() < until:
        with contextlib.suppress(OSError), _line(target, TOKEN) as line:
            _push(line, _opening(number))
            line.settimeout(seconds)
            while time.monotonic() < until:
                line.sendall(data)
                sent += 1
    return sent


def measure(name: str) -> str:
    """Return a line on one kind of message."""
    with tempfile.TemporaryDirectory() as directory, _ours(Path(directory)) as target:
        _health_s(target)
        before, took_s, over = resident_mb(target.pid), list[float](), threading.Event()

        def ask() -> None:
            while not over.wait(0.01):
                took_s.append(_health_s(target))

        asking = threading.Thread(target=ask)
        asking.start()
        sent = send(target, name, SECONDS)
        over.set()
        asking.join()
        slow = sorted(took_s)[math.ceil(len(took_s) * 0.99) - 1]
        grown = resident_mb(target.pid) - before
        refused = [line[-120:] for line in (Path(directory) / "log").read_text().splitlines() if "refused" in line]
        return (
            f"{name:22} x {sent:4.0f}: p50 {statistics.median(took_s) * 1e3:5.1f} ms, p99 {slow * 1e3:5.0f} ms of "
            f"{len(took_s):3}; memory {grown:+6.1f} MB; {len(refused)} refused {refused[0] if refused else ''}"
        )


def main() -> int:
    """Print a line for each kind."""
    if sys.argv[1:2] == ["send"]:
        print(_send(int(sys.argv[2]), sys.argv[3], float(sys.argv[4]), int(sys.argv[5])))
        return 0
    for name in (NOTHING, *payloads(0)):
        if len(sys.argv) < 2 or any(name.startswith(each) for each in sys.argv[1:]):
            print(measure(name), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
