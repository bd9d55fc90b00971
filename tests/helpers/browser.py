"""Pages in a real browser: Playwright with the system's Chromium. Nothing is downloaded."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--force-color-profile=srgb")


class OpenPage:
    """One tab with what its pages requested from any network, and what they complained about."""

    def __init__(self, browser: Any):
        self.tab = browser.new_page()
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.on("console", self._console)

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning", "assert"):
            self.complaints.append(message.text)

    def open(self, page: Path, *, width: int = 1280, height: int = 900, dark: bool = False, address: str = "") -> None:
        """Opens a file at a width and a theme, and waits until its script is done."""
        self.tab.goto("about:blank")
        self.requests.clear()
        self.complaints.clear()
        self.tab.set_viewport_size({"width": width, "height": height})
        self.tab.emulate_media(color_scheme="dark" if dark else "light", media="screen")
        self.tab.goto(page.resolve().as_uri() + address)
        self.wait("document.body && document.body.dataset.ready === 'yes'")

    def run(self, expression: str) -> Any:
        """The value of an expression in the page."""
        return self.tab.evaluate(expression)

    def wait(self, expression: str) -> None:
        """Returns when the expression is true in the page."""
        self.tab.wait_for_function(f"() => Boolean({expression})", timeout=60_000)

    def text(self, selector: str) -> str:
        return str(self.tab.locator(selector).first.text_content())

    def texts(self, selector: str) -> list[str]:
        return list(self.tab.locator(selector).all_text_contents())


@contextmanager
def open_browser() -> Iterator[OpenPage]:
    """A tab of the system's Chromium; skips the test where Playwright or Chromium is missing."""
    program = os.environ.get("HRX_CHROMIUM") or next((path for name in NAMES if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip("no Chromium: install one (apt-get install chromium) or set HRX_CHROMIUM to its path")
    reason = "no Playwright: pip install playwright (without a browser download)"
    api = pytest.importorskip("playwright.sync_api", reason=reason)
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield OpenPage(browser)
        browser.close()
