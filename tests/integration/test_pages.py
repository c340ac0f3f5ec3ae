"""The pages in a real browser, made by the real server of what agents sent over the real wire."""

import contextlib
import json
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from ncclwatch.contract import wire
from ncclwatch.contract.model.rank import CallSite, RankView
from ncclwatch_server.simulation.fleet import Fleet
from ncclwatch_server.simulation.job.faults import FaultKind
from ncclwatch_server.simulation.job.layout import Layout
from tests.integration.browser import Window, chromium, window
from tests.integration.fake_agent import until
from tests.integration.server_process import ServerProcess
from tests.integration.test_hang_end_to_end import mine, torchrun
from tests.integration.wire_fleet import WireFleet, healthy, stuck

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

SMALL = Layout.parse("tp=2,pp=2,dp=4,ep=2")
BIG = Layout.parse("tp=8,pp=8,dp=256,ep=8,node=1024")
CULPRIT = 5
HOSTILE = '"><img src=x onerror=alert(1)><script>alert(2)</script>\u202e'
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


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[Path]:
    """Give a real job its runtime directory, and leave nothing of it behind."""
    yield tmp_path / "runtime"
    kill(tmp_path / "runtime")


def kill(runtime: Path) -> None:
    """Kill the processes of one test's job."""
    for process in mine(runtime):
        with contextlib.suppress(psutil.Error):
            process.kill()


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
