"""Draws the shipped dashboards with Grafana's own components, to be looked at. `make panels`

The answers are those of a real Prometheus that scrapes a real server with two simulated jobs, as in
tests/integration/test_dashboards_live.py. @grafana/ui draws stats, tables, time series and bar gauges; heat maps and
state timelines are in Grafana's application, which npm does not have: they are named. Needs npm (420 MB, kept in
build/panels) and Chromium.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser

from grafana.dashboards_of import built
from tests.integration.browser import chromium
from tests.integration.fake_agent import until
from tests.integration.prometheus import Prometheus
from tests.integration.test_dashboards_live import chosen, substituted, watched

HERE = Path(__file__).parent
PLACE = HERE.parents[1] / "build" / "panels"
HISTORY_S = 60.0
WIDTH = 1600
PAGE = """<!doctype html><html lang="en"><link rel="stylesheet" href="draw.css"><body><div id="root"></div>
<script>window.given = GIVEN</script><script src="draw.js"></script>
"""


def answered(board: dict, prometheus: Prometheus) -> dict:
    """Return a dashboard with the answer to each of its expressions."""
    values = chosen(board, prometheus)
    now = time.time()
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            expr = substituted(target["expr"], values)
            instant = target.get("instant") or target.get("format") == "table"
            target["result"] = (
                prometheus.query(expr, now) if instant else prometheus.query_range(expr, now - HISTORY_S, now, 1.0)
            )
    return board


def bundle() -> None:
    """Install Grafana's components, and make the script that draws of them."""
    PLACE.mkdir(parents=True, exist_ok=True)
    npm = shutil.which("npm")
    if npm is None:
        sys.exit("npm is missing: the panels are drawn with @grafana/ui. apt-get install -y npm")
    for name in ("package.json", "draw.jsx"):
        shutil.copy(HERE / name, PLACE / name)
    if not (PLACE / "node_modules" / "@grafana" / "ui").exists():
        # @grafana/ui asks for peers that its components do not load here.
        subprocess.run([npm, "install", "--legacy-peer-deps", "--no-audit", "--no-fund"], cwd=PLACE, check=True)
    loaders = [f"--loader:.{ending}=dataurl" for ending in ("svg", "woff2", "ttf")]
    given = ['--define:process.env.NODE_ENV="production"', "--define:global=window", "--log-level=error"]
    esbuild = ["node_modules/.bin/esbuild", "draw.jsx", "--bundle", "--outfile=draw.js", "--jsx=transform"]
    subprocess.run([*esbuild, *loaders, *given], cwd=PLACE, check=True)


def draw(browser: Browser, board: dict, dark: bool) -> tuple[Path, list[str]]:
    """Return the picture of a dashboard, and what failed in it."""
    picture = PLACE / f"{board['uid']}-{'dark' if dark else 'light'}.png"
    page_file = PLACE / "page.html"
    given = json.dumps({"board": board, "dark": dark}).replace("</", "<\\/")
    page_file.write_text(PAGE.replace("GIVEN", given), encoding="utf-8")
    context = browser.new_context(viewport={"width": WIDTH, "height": 900})
    page = context.new_page()
    failed: list[str] = []
    page.on("pageerror", lambda error: failed.append(str(error)))
    page.goto(page_file.as_uri())
    until(lambda: failed or page.locator("body[data-drawn=yes]").count(), timeout_s=60)
    failed += page.locator(".failed").all_inner_texts()
    page.screenshot(path=picture, full_page=True)
    context.close()
    return picture, failed


def main() -> int:
    """Draw all dashboards, light and dark. Returns 1 if a panel could not be drawn."""
    parser = argparse.ArgumentParser(prog="python -m tests.panels", description=__doc__)
    parser.add_argument("--again", action="store_true", help="with the answers of the run before")
    given = parser.parse_args()
    bundle()
    worst = 0
    answers = PLACE / "answers.json"
    if not given.again:
        with tempfile.TemporaryDirectory() as directory, watched(Path(directory)) as prometheus:
            time.sleep(HISTORY_S)
            answers.write_text(json.dumps([answered(board, prometheus) for board in built().values()]))
    boards = json.loads(answers.read_text())
    with chromium() as browser:
        for board in boards:
            for dark in (False, True):
                picture, failed = draw(browser, board, dark)
                print(picture, *failed, sep="\n  ")
                worst |= bool(failed)
    return worst


if __name__ == "__main__":
    sys.exit(main())
