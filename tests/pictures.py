"""Draws the pictures of the documentation from running code: `make pictures`, into docs/pictures.

The terminal is that of a real job that hangs; the pages are those of the real server, which watches a simulated job.
"""

import io
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from jinja2 import Environment
from playwright.sync_api import Browser
from rich.console import Console
from rich.text import Text

from ncclwatch_server import ui
from ncclwatch_server.judge import judge
from ncclwatch_server.simulation.job.layout import Layout
from ncclwatch_server.ui.graph import drawing_of
from tests.integration.browser import chromium, window
from tests.integration.fake_agent import until
from tests.integration.server_process import ServerProcess
from tests.integration.wire_fleet import WireFleet, healthy, stuck
from tests.scenarios.texts import FILES, read
from tests.zoo.demo import PROGRAM

PLACE = Path(__file__).parents[1] / "docs" / "pictures"
LAYOUT = Layout.parse("tp=4,pp=2,dp=8")
CULPRIT = 21
SCENARIO = "chain_to_a_rank_that_stands_still"
WIDTH = 1100


def main() -> None:
    """Draw all pictures."""
    PLACE.mkdir(exist_ok=True)
    terminal()
    waits()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name, chromium() as browser:
        pages(Path(name), browser)
    for path in sorted(PLACE.iterdir()):
        print(f"{path.name}  {path.stat().st_size / 1024:.0f} KiB")


def terminal() -> None:
    """Draw what the terminal of a hanging job shows."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", str(PROGRAM)]
    watch = [sys.executable, "-m", "ncclwatch", "run", "--on-hang", "abort", "--report", "/dev/null", "--"]
    done = subprocess.run([*watch, *launch], capture_output=True, text=True, timeout=300)
    lines = done.stderr.splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("ncclwatch: CRITICAL"))
    end = next(number for number in range(begin, len(lines)) if lines[number].startswith("  certainty"))
    shown = Console(record=True, width=100, file=io.StringIO())
    shown.print(Text(f"$ ncclwatch run -- torchrun --nproc-per-node 4 {PROGRAM.name}", style="dim"))
    for line in lines[begin : end + 1]:
        text = Text(line)
        text.highlight_regex(r"^ncclwatch: CRITICAL|^  (?:why|do|culprit|certainty)", "bold red")
        shown.print(text)
    svg = shown.export_svg(title="a job that hangs", unique_id="terminal")
    # The fonts that it names would be loaded from elsewhere; without them it is shown in the reader's own.
    (PLACE / "terminal.svg").write_text(re.sub(r"(?s)@font-face\s*{.*?}", "", svg), encoding="utf-8")


# The page's own style, in the colours of light mode: an image has no style sheet of its own.
GRAPH_STYLE = """
text { font: 14px system-ui, sans-serif; fill: #14181f }
.who { font-weight: 650 } .place { font: 12px monospace; fill: #59636f }
rect { fill: #ffffff; stroke: #e08a00; stroke-width: 1.5 }
.blamed rect { fill: #fdebec; stroke: #c4161c; stroke-width: 2.5 }
.arrow { fill: none; stroke: #59636f; stroke-width: 1.8 } marker path { fill: #59636f }
"""


def waits() -> None:
    """Draw who waits for whom, as the page of an incident does, of a scenario of the judge's tests."""
    (path,) = (each for each in FILES if each.stem == SCENARIO)
    (said, *_) = judge(read(path)[0].snapshot())
    drawing = drawing_of(said)
    assert drawing is not None
    template = (Path(ui.__file__).parent / "templates" / "parts" / "incident.html").read_text(encoding="utf-8")
    begin = template.index("<svg")
    svg = template[begin : template.index("</svg>") + len("</svg>")]
    drawn = Environment(autoescape=True).from_string(svg).render(d=drawing)
    drawn = drawn.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    drawn = drawn.replace("<defs>", f"<style>{GRAPH_STYLE}</style><defs>", 1)
    (PLACE / "waits.svg").write_text(drawn + "\n", encoding="utf-8")


def pages(place: Path, browser: Browser) -> None:
    """Draw the page of an incident and that of its job."""
    with (
        ServerProcess(place, program="tests.integration.pages_server") as server,
        WireFleet(server.url, healthy(LAYOUT), job="llm-70b") as fleet,
    ):
        until(lambda: fleet.rounds > 10, timeout_s=120.0)
        fleet.hang(stuck(LAYOUT, CULPRIT))
        until(lambda: any(incident["stacks"] for incident in server.incidents()), timeout_s=60.0)
        time.sleep(15.0)  # so that the picture of the ranks shows the hang
        (incident, *_) = server.incidents()
        for name, path, height in (("incident", f"/incidents/{incident['id']}", 1150), ("job", "/jobs/llm-70b", 1090)):
            with window(browser, viewport={"width": WIDTH, "height": height}) as seen:
                page = seen.go(server.url + path)
                if name == "job":
                    page.wait_for_function("() => document.getElementById('picture').dataset.ready")
                page.screenshot(path=str(PLACE / f"{name}.png"))


if __name__ == "__main__":
    main()
