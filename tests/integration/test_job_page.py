"""The page of a job and the lists, in a real browser: the picture of all ranks, its axes, links, searches."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from ncclwatch_server.simulation.fleet import Fleet
from ncclwatch_server.simulation.job.faults import FaultKind
from ncclwatch_server.simulation.job.layout import Layout
from tests.integration.browser import window
from tests.integration.fake_agent import until
from tests.integration.pages_scene import (
    CULPRIT,
    PATIENCE_MS,
    SMALL,
    Scene,
    browser,
    painted,
    pixels,
    scene,
    server,
    settled,
)
from tests.integration.server_process import ServerProcess
from tests.integration.wire_fleet import WireFleet, healthy, stuck

__all__ = ["browser", "scene", "server"]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

BIG = Layout.parse("tp=8,pp=8,dp=256,ep=8,node=1024")


def test_a_job_that_hangs_before_the_readers_eyes_becomes_a_sentence_without_a_reload(
    server: ServerProcess, browser: Browser
):
    with WireFleet(server.url, healthy(SMALL), job="live") as fleet, window(browser) as seen:
        until(lambda: fleet.rounds > 1)
        page = seen.go(f"{server.url}/jobs/live")
        painted(page)
        expect(page.locator("h1")).to_contain_text("ranks communicate", timeout=PATIENCE_MS)
        page.evaluate("window.stayed = true")
        fleet.hang(stuck(SMALL, CULPRIT))
        expect(page.locator(".headline.hung h1")).to_contain_text("rank 5", timeout=PATIENCE_MS)
        page.wait_for_function(
            "() => document.querySelectorAll('[data-part=latest] tr').length > 1", timeout=PATIENCE_MS
        )
        until(lambda: pixels(page, "blamed") > 0, timeout_s=30.0)
        assert pixels(page, "moving") > 0  # what was before is still there
        assert page.evaluate("window.stayed")
        expect(page.locator("[data-part=groups]")).to_contain_text("default group")
        expect(page.locator("[data-part=doing]")).to_contain_text("train")


def test_all_of_it_can_be_done_with_keys(scene: Scene, browser: Browser):
    with window(browser) as seen:
        page = seen.go(f"{scene.url}/jobs/llm#order=rank")
        painted(page)
        page.keyboard.press("?")
        expect(page.locator("#keys")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator("#keys")).to_be_hidden()
        page.locator("#matrix").focus()
        page.keyboard.press("ArrowUp")
        expect(page.locator("#tip")).to_contain_text("rank 7")
        page.keyboard.press("+")
        expect(page.locator("#range")).to_contain_text("ranks 4 to 11")
        page.keyboard.press("0")
        expect(page.locator("#range")).to_contain_text("ranks 0 to 15")
        page.keyboard.press("Escape")
        expect(page.locator("#tip")).to_be_hidden()
        page.keyboard.press("i")
        page.wait_for_url("**/incidents")
        page.keyboard.press("j")
        page.wait_for_url("**/jobs")


def test_the_ranks_of_a_hung_job_lie_with_the_incident_first_and_by_each_dimension(scene: Scene, browser: Browser):
    with window(browser) as seen:
        page = seen.go(f"{scene.url}/jobs/llm")
        settled(page)
        expect(page.locator("#orders")).to_have_value("incident first")
        expect(page.locator("#labels .row").first).to_have_text("culprit")
        page.locator("#matrix").focus()
        for _ in range(20):
            page.keyboard.press("ArrowUp")
        expect(page.locator("#tip")).to_contain_text("rank 5 · culprit")
        page.locator("#orders").select_option("tp")
        expect(page.locator("#labels .row").nth(2)).to_have_text("tp 2")
        assert "order=tp" in page.evaluate("location.hash")


def test_a_link_leads_to_a_rank_and_a_moment(scene: Scene, browser: Browser):
    with window(browser) as seen:
        page = seen.go(f"{scene.url}/jobs/llm#order=rank")
        settled(page)
        expect(page.locator("#axis .tick").first).to_contain_text(re.compile(r"^\d\d:\d\d:\d\d$"), timeout=PATIENCE_MS)
        page.locator("#matrix").focus()
        page.keyboard.press("ArrowUp")
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("Enter")
        link = page.url
        found = re.search(r"#rank=7&t=2\d\d\d-\d\d-\d\dT(\d\d)%3A(\d\d)%3A(\d\d)\.\d+Z&order=rank$", link)
        assert found, link
    with window(browser) as seen:
        page = seen.go(link)
        settled(page)
        assert page.locator("#tip").inner_text().splitlines()[0] == f"rank 7 · {':'.join(found.groups())} UTC"


def test_the_past_is_pulled_into_the_picture_and_the_present_is_a_press_away(scene: Scene, browser: Browser):
    with window(browser) as seen:
        page = seen.go(f"{scene.url}/jobs/llm#order=rank")
        settled(page)
        page.wait_for_function(
            "() => Number(document.getElementById('picture').dataset.columns) > 14", timeout=PATIENCE_MS
        )
        expect(page.locator("#live")).to_be_hidden()
        box = page.locator("#matrix").bounding_box()
        page.mouse.move(box["x"] + 100, box["y"] + 20)
        page.mouse.down()
        page.mouse.move(box["x"] + 160, box["y"] + 20)
        page.mouse.up()
        expect(page.locator("#live")).to_be_visible()
        page.locator("#live").click()
        expect(page.locator("#live")).to_be_hidden()
        before = int(page.locator("#picture").get_attribute("data-column-pixels"))
        page.get_by_title("closer in time").click()
        assert int(page.locator("#picture").get_attribute("data-column-pixels")) > before


def test_a_job_is_saved_as_a_trace(scene: Scene, browser: Browser, tmp_path: Path):
    with window(browser) as seen:
        page = seen.go(f"{scene.url}/jobs/llm")
        with page.expect_download() as download:
            page.get_by_role("button", name="Save as trace").click()
        assert download.value.suggested_filename == "llm.pftrace"
        download.value.save_as(tmp_path / "llm.pftrace")
        assert b"rank 5 on node00000: culprit" in (tmp_path / "llm.pftrace").read_bytes()
        expect(page.locator("#copied")).to_contain_text("ui.perfetto.dev")


def test_jobs_are_searched_and_the_hung_one_comes_first(scene: Scene, browser: Browser):
    with window(browser) as seen:
        page = seen.go(f"{scene.url}/jobs")
        expect(page.locator("[data-part=jobs] tbody tr").first).to_contain_text("llm")
        expect(page.locator("[data-part=jobs] tbody tr").first).to_contain_text("hung")
        page.get_by_label("Search").fill("RESNET")
        page.get_by_role("button", name="Show").click()
        expect(page.locator("[data-part=jobs] .name")).to_have_text(["team/resnet"])
        page.wait_for_function("() => document.querySelector('[data-part=jobs]').dataset.text", timeout=PATIENCE_MS)
        expect(page.locator("[data-part=jobs] .name")).to_have_text(["team/resnet"])  # nor does the stream bring others
        page.get_by_label("Search").fill("no such job")
        page.get_by_role("button", name="Show").click()
        expect(page.locator(".empty")).to_contain_text("None of")


def test_incidents_are_found_by_a_text_and_a_time(scene: Scene, browser: Browser):
    with window(browser) as seen:
        page = seen.go(f"{scene.url}/incidents")
        page.get_by_label("Search").fill(scene.incident["summary"][:30].upper())
        page.get_by_label("Reported").select_option("last hour")
        page.get_by_role("button", name="Show").click()
        expect(page.locator(".incidents .say").first).to_have_text(scene.incident["summary"])
        page.get_by_label("Search").fill("gremlins")
        page.get_by_role("button", name="Show").click()
        expect(page.locator(".empty")).to_have_text("None.")


def test_batches_of_every_bucket_are_shown_for_who_has_fewer(scene: Scene, browser: Browser):
    with window(browser) as seen:
        page = seen.go(f"{scene.url}/jobs/llm")
        rows = page.locator("[data-part=batches] tbody tr")
        expect(rows.nth(0)).to_have_text("54748407out of data")
        expect(rows.nth(1)).to_have_text("0-4,6-154848408")


def test_one_rank_of_16384_is_seen(server: ServerProcess, browser: Browser):
    still: list[Fleet] = [stuck(BIG, 1001, FaultKind.STOPPED)]
    with WireFleet(server.url, still, job="big", answers=False) as fleet, window(browser) as seen:
        until(lambda: fleet.rounds > 1, timeout_s=60.0)
        page = seen.go(f"{server.url}/jobs/big")
        painted(page)
        expect(page.locator("#range")).to_contain_text("ranks 0 to 16,383")
        until(lambda: pixels(page, "frozen") > 0, timeout_s=60.0)
        expect(page.locator("[data-part=states]")).to_contain_text("stopped11001", timeout=PATIENCE_MS)
        assert page.locator("[data-part=groups] tbody tr").count() <= 16
