"""A real browser for tests: Debian's Chromium, driven by Playwright."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = Path("/usr/bin/chromium")
# A test needs no GPU, no sandbox of its own, and nothing of Google's.
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a browser for as long as the context lasts."""
    assert CHROMIUM.exists(), (
        f"{CHROMIUM} is missing: the tests of the pages need a browser. apt-get install -y chromium, as .ci/run does"
    )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=list(ARGUMENTS))
        yield browser
        browser.close()


@dataclass(slots=True)
class Window:
    """One page, and everything that its console complained about."""

    page: Page
    complaints: list[str] = field(default_factory=list)

    def go(self, url: str) -> Page:
        """Open an address."""
        self.page.goto(url)
        return self.page


@contextmanager
def window(browser: Browser, **context: Any) -> Iterator[Window]:
    """Open a window with cookies of its own. It fails if the console complained."""
    place = browser.new_context(**context)
    place.set_default_timeout(30_000)
    found = Window(place.new_page())
    found.page.on("console", lambda said: said.type in ("error", "warning") and found.complaints.append(said.text))
    found.page.on("pageerror", lambda error: found.complaints.append(str(error)))
    found.page.on("dialog", lambda dialog: (found.complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    yield found
    place.close()
    assert not found.complaints, found.complaints
