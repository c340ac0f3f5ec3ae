"""The pages in a real browser, made by the real server of what agents sent over the real wire."""

import json
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from ncclwatch.contract import wire
from ncclwatch.contract.model.rank import CallSite, RankView
from tests.integration.browser import Window, window
from tests.integration.fake_agent import until
from tests.integration.pages_scene import (
    CULPRIT,
    PATIENCE_MS,
    SMALL,
    Scene,
    browser,
    found,
    loops,
    painted,
    scene,
    server,
    settled,
)
from tests.integration.real_jobs import kill_all, torchrun
from tests.integration.server_process import ServerProcess
from tests.integration.wire_fleet import WireFleet, stuck

__all__ = ["browser", "scene", "server"]

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

HOSTILE = '"><img src=x onerror=alert(1)><script>alert(2)</script>\u202e'


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[Path]:
    """Give a real job its runtime directory, and leave nothing of it behind."""
    yield tmp_path / "runtime"
    kill(tmp_path / "runtime")


def kill(runtime: Path) -> None:
    """Kill the processes of one test's job."""
    kill_all(runtime)


def test_an_incident_is_told_sentence_first_and_drawn(scene: Scene, browser: Browser):
    with window(browser) as seen:
        page = seen.go(f"{scene.url}/jobs")
        page.get_by_role("link", name=scene.incident["summary"]).first.click()
        page.wait_for_url("**/incidents/*")
        expect(page.locator("h1")).to_have_text(scene.incident["summary"])
        expect(page.locator(".do")).to_contain_text(scene.incident["advice"])
        text = page.locator("main").inner_text().lower()
        assert text.index(scene.incident["summary"].lower()) < text.index("why")
        boxes = page.locator("svg.graph .box")
        assert boxes.count() >= 2
        expect(page.locator("svg.graph .blamed .who")).to_have_text("rank 5")
        assert page.locator("svg.graph .arrow").count() >= 2
        expect(page.locator("#repair-title + ul")).to_contain_text("rank 5 skipped")
        expect(page.locator(".tree")).to_contain_text("clip_grad_norm")
        expect(page.locator(".timeline")).to_contain_text("the wait began")
        expect(page.locator(".evidence")).to_contain_text("ring")
        assert json.load(urllib.request.urlopen(scene.url + page.locator("a", has_text="JSON").get_attribute("href")))


def test_the_cause_links_to_its_page_and_the_incident_is_a_file(scene: Scene, browser: Browser, tmp_path: Path):
    with window(browser) as seen:
        page = seen.go(f"{scene.url}/incidents/{scene.incident['id']}")
        with page.expect_download() as download:
            page.get_by_role("link", name="HTML file").click()
        file = tmp_path / download.value.suggested_filename
        download.value.save_as(file)
        page.locator(".verdict .meta a").first.click()
        page.wait_for_url("**/causes/*")
        expect(page.locator("main")).to_contain_text("How to fix it")
        page = seen.go(file.as_uri())
        assert file.name == f"ncclwatch-{scene.incident['id']}.html"
        expect(page.locator("h1")).to_have_text(scene.incident["summary"])
        expect(page.locator("svg.graph .blamed .who")).to_have_text("rank 5")


def test_the_incident_can_be_copied_for_slack(scene: Scene, browser: Browser):
    with window(browser, permissions=["clipboard-read", "clipboard-write"]) as seen:
        page = seen.go(f"{scene.url}/incidents/{scene.incident['id']}")
        page.get_by_role("button", name="Copy for Slack").click()
        expect(page.locator("#copied")).to_have_text("copied")
        text = page.evaluate("navigator.clipboard.readText()")
        assert f"> {scene.incident['summary']}" in text.splitlines()
        assert f"{scene.url}/incidents/{scene.incident['id']}" in text


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_no_page_is_wider_than_the_window(scene: Scene, browser: Browser, scheme: str, width: int):
    with window(browser, viewport={"width": width, "height": 800}, color_scheme=scheme) as seen:
        for path in pages(scene):
            page = seen.go(scene.url + path)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
            ground = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
            assert (ground == "rgb(15, 19, 24)") is (scheme == "dark")


def pages(scene: Scene) -> tuple[str, ...]:
    """Return a page of each kind."""
    incident = f"/incidents/{scene.incident['id']}"
    return (
        "/jobs",
        "/jobs/llm",
        "/jobs/team%2Fresnet",
        incident,
        "/incidents",
        "/report",
        "/hosts/node00000",
        "/settings",
        "/causes/straggler",
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault_of_accessibility(scene: Scene, browser: Browser, scheme: str):
    with window(browser, color_scheme=scheme) as seen:
        for path in (*pages(scene), "/jobs/llm#order=rank&rank=5", "/nowhere"):
            page = seen.go(scene.url + path)
            if path.startswith("/jobs/"):
                settled(page)
            violations = Axe().run(page).response["violations"]
            serious = [
                (each["id"], [node["html"][:200] for node in each["nodes"][:3]])
                for each in violations
                if each["impact"] in ("serious", "critical")
            ]
            assert not serious, (path, serious)
        seen.complaints = [said for said in seen.complaints if "404" not in said]


def test_a_page_loads_nothing_from_elsewhere_and_runs_nothing_inline(scene: Scene, browser: Browser):
    with window(browser) as seen:
        hosts: set[str] = set()
        seen.page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
        for path in pages(scene):
            seen.go(scene.url + path)
        assert hosts == {scene.url.split("/")[2]}
        blocked = seen.page.evaluate(
            """() => { const script = document.createElement('script');
                       try { script.textContent = 'window.ran = 1'; } catch { return true; }
                       document.body.append(script); return window.ran === undefined; }"""
        )
        assert blocked
        seen.complaints = [said for said in seen.complaints if "Security Policy" not in said and "Trusted" not in said]


def test_pages_are_whole_without_scripts(scene: Scene, browser: Browser):
    with window(browser, java_script_enabled=False) as seen:
        page = seen.go(f"{scene.url}/incidents/{scene.incident['id']}")
        expect(page.locator("h1")).to_have_text(scene.incident["summary"])
        page = seen.go(f"{scene.url}/jobs/llm")
        expect(page.locator("h1")).to_contain_text("rank 5")
        expect(page.locator("[data-part=states]")).to_contain_text("blamed by an open incident")


def test_what_hostile_ranks_send_is_shown_and_never_run(server: ServerProcess, browser: Browser):
    job = HOSTILE.rstrip("\u202e")

    def disguise(view: RankView) -> RankView:
        evil = CallSite(file=f"/job/{HOSTILE}.py", line=1, function=HOSTILE)
        threads = tuple(
            replace(t, doing=evil, frames=(evil,), wait=replace(t.wait, site=evil) if t.wait else None)
            for t in view.threads
        )
        groups = tuple(replace(group, desc=HOSTILE) for group in view.groups)
        return replace(view, phase=HOSTILE, device=HOSTILE, threads=threads, groups=groups)

    evil_loops = tuple(replace_loop(loop) for loop in loops(SMALL.world_size))
    fleet = WireFleet(server.url, [stuck(SMALL, CULPRIT)], job=job, loops=evil_loops, host=host, disguise=disguise)
    with fleet, window(browser) as seen:
        fleet.hang(stuck(SMALL, CULPRIT))
        until(lambda: any(i["job"] == job for i in all_incidents(server.url)), timeout_s=60.0)
        (incident,) = [i for i in all_incidents(server.url) if i["job"] == job]
        for path in ("/jobs", f"/incidents/{incident['id']}", "/incidents"):
            harmless(seen, server.url + path)
        seen.go(f"{server.url}/jobs")
        seen.page.get_by_role("link", name=job, exact=True).first.click()
        painted(seen.page)
        seen.page.wait_for_function(
            "() => document.querySelector('[data-part=groups]').dataset.text", timeout=PATIENCE_MS
        )
        harmless(seen)
        seen.page.locator("[data-part=hosts] a").first.click()
        harmless(seen)


def replace_loop(loop: wire.Loop) -> wire.Loop:
    """Return a loop with hostile names."""
    return wire.Loop(
        rank=loop.rank, loader=HOSTILE, number=1, drawn=1, length=1, ended=False, even=False, buckets=((HOSTILE, 1),)
    )  # fmt: skip


def host(node: int) -> str:
    """Return a hostile name of a machine."""
    return f"{HOSTILE}{node}"


def all_incidents(url: str) -> list[dict]:
    with urllib.request.urlopen(f"{url}/api/v1/incidents", timeout=20) as answer:
        return json.load(answer)


def harmless(seen: Window, url: str = "") -> None:
    """Check that hostile text is on the page, as text."""
    page = seen.go(url) if url else seen.page
    assert page.locator("img[src=x]").count() == 0
    assert page.evaluate("[...document.scripts].every((script) => script.src.startsWith(location.origin))")
    text = page.locator("main").inner_text()
    assert "<script>alert(2)</script>" in text
    assert "\u202e" not in text


def test_a_real_job_is_on_its_page_with_its_source_and_stacks(server: ServerProcess, browser: Browser, runtime: Path):
    job = torchrun(runtime, "hang.py", 2, NCCLWATCH_SERVER=server.url, NCCLWATCH_JOB="real")
    try:
        until(lambda: any(i["stacks"] for i in found(server.url, "real")), timeout_s=90.0)
        with window(browser) as seen:
            page = seen.go(f"{server.url}/jobs/real")
            painted(page)
            expect(page.locator(".headline.hung h1")).to_contain_text("rank 1 called barrier at hang.py:16")
            page.get_by_role("link", name="Open the incident").first.click()
            page.wait_for_url("**/incidents/*")
            expect(page.locator(".parted .culprit pre")).to_contain_text("dist.barrier()")
            expect(page.locator(".parted .others pre")).to_contain_text("backward()")
            expect(page.locator("svg.graph .blamed .who")).to_have_text("rank 1")
            expect(page.locator(".parted .culprit .source .here")).to_contain_text("dist.barrier()")
            expect(page.locator(".parted .culprit .source .test")).to_contain_text("if step == 30")
            expect(page.locator(".tree")).to_contain_text("hang.py:16")
            expect(page.locator(".evidence")).to_contain_text("flight recorder")
            page.get_by_role("button", name="Take stacks now").click()
            expect(page.locator("#answer-text")).to_contain_text("in barrier at hang.py:16", timeout=PATIENCE_MS)
            page.keyboard.press("Escape")
            page.get_by_role("button", name="Silence for 1 h").click()
            expect(page.locator("#copied")).to_contain_text("no alerts about this job", timeout=PATIENCE_MS)
            page.evaluate(
                """() => {
                const part = document.querySelector("[data-part=incident]"), other = part.cloneNode(true);
                other.querySelector("#copied").textContent = "";
                part.replaceChildren(...other.childNodes);
                document.dispatchEvent(new CustomEvent("parts"));
                }"""
            )
            assert "no alerts about this job" in page.locator("#copied").inner_text(), "an update took the answer away"
    finally:
        job.kill()
        kill(runtime)
        job.communicate(timeout=30)


def test_a_guarded_server_wants_a_token_and_keeps_it_from_scripts(tmp_path: Path, browser: Browser):
    token = "a-long-token"
    with (
        ServerProcess(tmp_path, token=token, program="tests.integration.pages_server") as guarded,
        window(browser) as seen,
    ):
        page = seen.go(f"{guarded.url}/settings")
        assert page.url.endswith("/login?next=%2Fsettings")
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("token")
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Log in").click()
        page.wait_for_url("**/settings")
        assert token not in page.content()
        assert page.evaluate("document.cookie") == ""
        assert page.evaluate("fetch('/api/v1/jobs').then((answer) => answer.status)") == 200
        page.get_by_role("button", name="Forget my token").click()
        page.wait_for_url("**/login")
        assert seen.go(f"{guarded.url}/jobs").url.endswith("/login?next=%2Fjobs")
        seen.complaints = [said for said in seen.complaints if "401" not in said]


@pytest.mark.parametrize("target", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)"])
def test_the_login_page_leads_to_no_other_site(scene: Scene, browser: Browser, target: str):
    with window(browser) as seen:
        page = seen.go(f"{scene.url}/login?next={urllib.request.quote(target, safe='')}")
        assert page.locator("input[name=next]").get_attribute("value") == "/jobs"
