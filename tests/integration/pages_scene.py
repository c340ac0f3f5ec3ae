"""A server with jobs that a real browser looks at: shared by the tests of the pages.

Each module that imports the fixtures has a server and a browser of its own.
"""

import json
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, Page

from ncclwatch.contract import wire
from ncclwatch_server.simulation.job.layout import Layout
from tests.integration.browser import chromium
from tests.integration.fake_agent import until
from tests.integration.server_process import ServerProcess
from tests.integration.wire_fleet import WireFleet, healthy, stuck

__all__ = ["browser", "scene", "server"]

SMALL = Layout.parse("tp=2,pp=2,dp=4,ep=2")
CULPRIT = 5
PATIENCE_MS = 60_000


def loops(count: int) -> tuple[wire.Loop, ...]:
    """Return loops in which one rank has a batch less than the others."""
    return tuple(
        wire.Loop(
            rank=rank, loader="train.py:212", number=3, drawn=47 if rank == CULPRIT else 48, length=48,
            ended=rank == CULPRIT, even=False, buckets=(("3x512x512", 40), ("3x768x512", 7 + (rank != CULPRIT))),
        )
        for rank in range(count)
    )  # fmt: skip


@dataclass(frozen=True)
class Scene:
    """A server with a job that hangs by now, and one that goes on."""

    url: str
    incident: dict


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("pages")
    with ServerProcess(directory, program="tests.integration.pages_server") as process:
        yield process


@pytest.fixture(scope="module")
def scene(server: ServerProcess) -> Iterator[Scene]:
    with (
        WireFleet(server.url, healthy(SMALL), job="llm", loops=loops(SMALL.world_size)) as fleet,
        WireFleet(server.url, healthy(Layout.parse("dp=8")), job="team/resnet"),
    ):
        until(lambda: fleet.rounds > 2)
        fleet.hang(stuck(SMALL, CULPRIT))
        # The incident is opened before the stacks that were asked for have come.
        until(lambda: any(incident["stacks"] for incident in found(server.url, "llm")), timeout_s=60.0)
        yield Scene(server.url, found(server.url, "llm")[0])


def found(url: str, job: str) -> list[dict]:
    """Return the incidents of a job."""
    with urllib.request.urlopen(f"{url}/api/v1/incidents?job={job}", timeout=20) as answer:
        return json.load(answer)


def painted(page: Page) -> None:
    """Wait until the picture is there."""
    page.wait_for_function("() => document.getElementById('picture').dataset.columns > 0", timeout=PATIENCE_MS)


def settled(page: Page) -> None:
    """Wait until the picture is there, with its orders and what the address names."""
    page.wait_for_function("() => document.getElementById('picture').dataset.ready", timeout=PATIENCE_MS)


def pixels(page: Page, colour: str) -> int:
    """Return how many pixels of the picture have the colour of a state."""
    return page.evaluate(
        """(name) => {
            const probe = document.createElement('canvas').getContext('2d');
            probe.fillStyle = getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim();
            probe.fillRect(0, 0, 1, 1);
            const [r, g, b] = probe.getImageData(0, 0, 1, 1).data;
            const canvas = document.getElementById('matrix');
            const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
            let count = 0;
            for (let i = 0; i < data.length; i += 4) if (data[i] === r && data[i+1] === g && data[i+2] === b) count++;
            return count;
        }""",
        colour,
    )
