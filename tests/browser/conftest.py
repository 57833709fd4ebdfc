"""The browser, and pages that check themselves: nothing leaves this machine, and nothing fails."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(name="browser", scope="package")
def _browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        path = BROWSER or started.chromium.executable_path
        if not Path(path).exists():
            pytest.skip("there is no Chromium here: sh scripts/find-chromium.sh installs it")
        browser = started.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


class Tabs:
    """Opens tabs, and notes what goes wrong in them.

    Attributes:
        problems: errors of the console and of pages, and requests to other machines.
    """

    def __init__(self, browser: Any) -> None:
        self._browser = browser
        self._contexts: list[Any] = []
        self.problems: list[str] = []

    def open(self, url: str, *, wait: bool = True, **options: Any) -> Any:
        """Return a new tab of a browser that knows nothing yet."""
        options.setdefault("viewport", {"width": 1280, "height": 900})
        context = self._browser.new_context(**options)
        self._contexts.append(context)
        return self.another(context, url, wait=wait)

    def another(self, context: Any, url: str, *, wait: bool = True) -> Any:
        """Return one more tab of the same browser."""
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", self._note_console)
        page.on("request", self._note_request)
        page.goto(url)
        if wait:
            page.wait_for_selector("main .view section")
        return page

    def close(self) -> None:
        """Close all tabs."""
        for context in self._contexts:
            context.close()

    def _note_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(message.text)

    def _note_request(self, request: Any) -> None:
        if not request.url.startswith(("http://127.0.0.1:", "data:", "file:")):
            self.problems.append(f"a request left this machine: {request.url}")


@pytest.fixture(name="tabs")
def _tabs(browser: Any) -> Iterator[Tabs]:
    tabs = Tabs(browser)
    yield tabs
    tabs.close()


def until(page: Any, condition: str, argument: Any = None, most_s: float = 15.0) -> None:
    """Wait until an expression of JavaScript is true.

    Playwright's own way evaluates texts in the page, which the page's policy forbids.
    """
    deadline = time.monotonic() + most_s
    while not page.evaluate(condition, argument):
        assert time.monotonic() < deadline, f"not within {most_s} s: {condition}"
        page.wait_for_timeout(30)
