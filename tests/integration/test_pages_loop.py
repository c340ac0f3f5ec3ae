"""No page and no question holds up the event loop, on which digests come in: of a job of 16,384 ranks."""

import asyncio
import gc
import itertools
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import uvicorn

from ncclwatch.contract import digests
from ncclwatch_server.app import create_app
from ncclwatch_server.evidence.agent_link import Link
from ncclwatch_server.serving.uvicorn_server import listen
from ncclwatch_server.settings import Settings
from ncclwatch_server.simulation.fleet import Fleet
from ncclwatch_server.simulation.job.layout import Layout
from ncclwatch_server.simulation.job.program import Training
from ncclwatch_server.simulation.run import cruising
from ncclwatch_server.watch.tick import Watch
from tests.integration.fake_agent import until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

LAYOUT = Layout.parse("tp=8,pp=8,dp=256,ep=8")
JOB = "big"
LONGEST_MS = 20.0
PATHS = (
    "/jobs", "/jobs/big", "/matrix/big", "/incidents", "/hosts/node00003", "/settings", "/api/v1/jobs",
    "/api/v1/jobs/big", "/api/v1/jobs/big/ranks?limit=2000", "/api/v1/jobs/big/groups?limit=1000",
    "/api/v1/jobs/big/report", "/api/v1/incidents", "/metrics",
)  # fmt: skip


class Nodes:
    """2,048 nodes that report every second, as far as the event loop sees of it."""

    def __init__(self, watch: Watch) -> None:
        fleet = Fleet(cruising(LAYOUT, Training(), steps=3, at_step=2))
        ranks, groups = fleet.rows(0.0)
        each, size = len(LAYOUT.axes), LAYOUT.node
        rank_bytes, group_bytes = memoryview(ranks.tobytes()), memoryview(groups.tobytes())
        at, group_at = size * digests.RANK_ROW.size, size * each * digests.GROUP_ROW.size
        self._rows = []
        for node in range(fleet.nodes):
            link = Link(number=node + 1, agent=f"a{node}", host=f"node{node:05d}", version="0.1.0")
            self._job = watch.jobs.announce(link, fleet.announce(node, JOB), time.monotonic())
            mine = rank_bytes[node * at : (node + 1) * at], group_bytes[node * group_at : (node + 1) * group_at]
            self._rows.append((link.number, *mine))
        for row in self._rows:
            self._job.state.receive_digest(*row, time.monotonic())

    async def report(self) -> None:
        """Send digests until cancelled."""
        for first in itertools.cycle(range(0, len(self._rows), 64)):
            for row in self._rows[first : first + 64]:
                self._job.state.receive_digest(*row, time.monotonic())
            await asyncio.sleep(0.02)


@contextmanager
def served(longest: dict[str, float]) -> Iterator[str]:
    """Serve a big job, and note how much CPU the longest callback of the loop's thread took."""
    app = create_app(Settings())
    listener = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, loop="asyncio", log_level="warning", lifespan="on"))
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run(handle)
        longest["ms"] = max(longest["ms"], (time.thread_time() - began) * 1e3)

    nodes = Nodes(app.state.watch)

    async def serve() -> None:
        reporting = asyncio.create_task(nodes.report())
        await server.serve(sockets=[listener])
        reporting.cancel()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    asyncio.Handle._run = timed  # type: ignore[method-assign]
    gc.collect()
    gc.freeze()  # as the server does when it starts: all of pytest's heap would be looked through in the loop's thread
    try:
        thread.start()
        until(lambda: server.started and app.state.watch.ready, timeout_s=60.0)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        gc.unfreeze()
        asyncio.Handle._run = run  # type: ignore[method-assign]
        listener.close()


def asked(url: str) -> bytes:
    request = urllib.request.Request(url, headers={"Accept": "text/html", "Accept-Encoding": "gzip"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read()


def test_no_question_takes_the_event_loop_for_longer_than_a_digest_may_wait():
    longest = {"ms": 0.0}
    with served(longest) as url:
        found: dict[str, float] = {}
        for path in itertools.chain(PATHS, PATHS):
            longest["ms"] = 0.0
            assert asked(url + path)
            found[path] = min(found.get(path, 1e9), longest["ms"])  # the first answer compiles and lays out
        longest["ms"] = 0.0
        with urllib.request.urlopen(f"{url}/live/jobs/{urllib.parse.quote(JOB)}", timeout=60) as lines:
            assert any(line.startswith(b"event: parts") for line in lines)  # somebody looks
        found["a page that is looked at"] = longest["ms"]
    print({path: round(ms, 1) for path, ms in found.items()})
    assert max(found.values()) <= LONGEST_MS, found
