"""What the dashboard costs: the size of the page, how soon it is painted, and what looking costs.

Paint times need Chromium (``sh scripts/find-chromium.sh``) and Playwright. Step times are measured in
turns: nobody looks, then a client takes everything that a page takes. On a machine with few cores,
server and client would compete with the driver for them, as any program does. So they run at the lowest
priority (``nice``), and what is left is what their looks at the storage cost the driver. ``--no-nice``
lets them compete.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import figure, parser, percentile, report
from headrace.ledger.ledger import Ledger
from headrace.observe.web.assets import PAGE, assets
from headrace.storage import LocalStore

_MOST_BYTES, _MOST_PAINT_MS, _MOST_RATIO = 150_000, 300, 1.05
_TOKEN = "0123456789abcdef0123456789abcdef"
_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def page_bytes() -> int:
    """Return the size of all files of the page, as they are sent."""
    return sum(len(asset.packed) for asset in assets().values())


@contextlib.contextmanager
def started(*command: str, says: str) -> Iterator[str]:
    """Run a program during a ``with`` block. Yield the line by which it says that it is ready."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ
    )
    try:
        assert process.stdout is not None
        yield next(line for line in process.stdout if says in line)
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def served(folder: Path, *, nice: bool) -> Iterator[str]:
    """Serve the dashboard of a storage. Yield its address, without the token."""
    token = folder / "token"
    token.write_text(_TOKEN)
    options = ["--storage", str(folder / "storage"), "--listen", "127.0.0.1:0"]
    options += ["--token-file", str(token)]
    command = [sys.executable, "-u", "-m", "headrace.cli", "dashboard", *options]
    command = ["nice", "-n", "19", *command] if nice else command
    with started(*command, says="open ") as line:
        yield line.split()[1].partition("/?")[0]


class Looker:
    """Takes everything that a page takes: the feed, and with each step the parts of a view."""

    def __init__(self, url: str) -> None:
        self.messages = 0
        self._url = url
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Looker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join(10)

    def _open(self, path: str) -> Any:
        request = urllib.request.Request(f"{self._url}{path}")
        request.add_header("Authorization", f"Bearer {_TOKEN}")
        return urllib.request.urlopen(request, timeout=30)

    def _look(self) -> None:
        with self._open("/events") as feed:
            for line in feed:
                if self._ends.is_set():
                    return
                if line.startswith(b"data:"):
                    self.messages += 1
                    for part in ("steps", "bins", "migrations"):
                        with self._open(f"/api/v1/{part}") as answer:
                            json.loads(answer.read())


def step_times_ms(storage: Path, after: int) -> tuple[list[float], int]:
    """Return how long the steps after one took, and the newest step."""
    window = Ledger(LocalStore(storage)).newest(2_000, after)
    took = [sum(one.timing.driver_us.values()) / 1e3 for one in window if one.timing is not None]
    return took, window[-1].step if window else after


def looked_at(
    folder: Path, url: str, turns: int, seconds: float
) -> tuple[list[list[float]], list[list[float]]]:
    """Return step times of each turn, without and with somebody who looks, in turns."""
    without: list[list[float]] = []
    looking: list[list[float]] = []
    _, at = step_times_ms(folder / "storage", -1)
    for turn in range(2 * turns):
        (looking if turn % 2 else without).append([])
        with Looker(url) if turn % 2 else contextlib.nullcontext():
            ends = time.monotonic() + seconds
            while time.monotonic() < ends:
                time.sleep(0.5)  # often, for manifests are cleaned away
                took, at = step_times_ms(folder / "storage", at)
                (looking if turn % 2 else without)[-1].extend(took)
    return without, looking


def paints_ms(url: str, times: int) -> list[float]:
    """Return how soon the page showed something, in fresh browsers."""
    from playwright.sync_api import sync_playwright

    expression = (
        "new Promise(done => new PerformanceObserver(list => done(list.getEntries()[0].startTime))"
        ".observe({type: 'paint', buffered: true}))"
    )
    found = []
    with sync_playwright() as driver:
        path = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = driver.chromium.launch(executable_path=path, args=_FLAGS)
        for _ in range(times + 1):  # the first warms up the server
            context = browser.new_context()
            page = context.new_page()
            page.goto(f"{url}/?token={_TOKEN}")
            found.append(float(page.evaluate(expression)))
            context.close()
        browser.close()
    return found[1:]


def paint_figures(paints: list[float]) -> list[dict[str, Any]]:
    """Return the figures of paint times."""
    median = statistics.median(paints)
    goal = f"< {_MOST_PAINT_MS}"
    return [
        figure("first_paint_ms", median, "ms", goal, median < _MOST_PAINT_MS),
        figure("first_paint_longest_ms", max(paints), "ms"),
    ]


def main() -> None:
    """Measure, and print."""
    options = parser(__doc__)
    options.add_argument("--no-nice", action="store_true", help="let server and client compete")
    arguments: argparse.Namespace = options.parse_args()
    turns, seconds, times = (3, 10.0, 10) if arguments.quick else (10, 20.0, 30)
    folder = Path(tempfile.mkdtemp(prefix="headrace-dashboard-bench-"))
    size = page_bytes()
    figures = [figure("page_bytes", size, "B", f"< {_MOST_BYTES}", size < _MOST_BYTES)]
    driver = [sys.executable, "-u", "-m", "tests.support.lively", str(folder), "--rate", "1000"]
    try:
        with started(*driver, says="runs"):
            with contextlib.suppress(ImportError), served(folder, nice=False) as url:
                figures += paint_figures(paints_ms(url, times))
            if not arguments.no_nice:
                os.nice(19)  # of this process, in which the client runs
            with served(folder, nice=not arguments.no_nice) as url:
                time.sleep(5)
                without, looking = looked_at(folder, url, turns, seconds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    alone = [statistics.median(of) for of in without]
    ratios = [statistics.median(of) / before for of, before in zip(looking, alone, strict=True)]
    ratio = statistics.median(ratios)
    noise = max(alone) / min(alone)
    figures.append(
        figure("step_looked_at_over_alone", ratio, "x", f"<= {_MOST_RATIO}", ratio <= _MOST_RATIO)
    )
    figures.append(figure("step_looked_at_over_alone_least", min(ratios), "x"))
    figures.append(figure("step_looked_at_over_alone_most", max(ratios), "x"))
    figures.append(figure("step_alone_most_over_least_turn", noise, "x"))
    table = [["steps", "number", "p50 ms", "p95 ms"]]
    for name, turns_of in (("nobody looks", without), ("somebody looks", looking)):
        of = [took for turn in turns_of for took in turn]
        table.append(
            [name, f"{len(of)}", *(f"{percentile(of, share):.1f}" for share in (0.5, 0.95))]
        )
    report(
        f"what the dashboard costs; the page is {PAGE} with its files", table, figures, arguments
    )


if __name__ == "__main__":
    main()
