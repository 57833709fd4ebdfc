"""Does with spoilt storage all that people and pipelines do, and says what came of it.

In a process of its own, whose memory is bounded: what takes more than it should ends by an error that
is none of ours. Whatever is not a typed error, or takes too long, or touches a sentinel, is told.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from click.testing import CliRunner

import headrace as hr
from headrace.checkpoints.catalog import Checkpoints
from headrace.cli import main
from headrace.driver.driver import Driver, Settings
from headrace.errors import HeadraceError
from headrace.ledger.ledger import Ledger
from headrace.runners.inline import InlineRunner
from headrace.sources.inbox import Inbox
from headrace.storage import LocalStore, MemoryStore, Store, open_store
from tests.faults.hostile.left_in_storage import (
    NOW_US,
    Files,
    Note,
    gone_on,
    inbox_files,
    more_items,
    pipeline_files,
)
from tests.faults.hostile.spoiling import spoilt, spoilt_inbox
from tests.support.inboxes import StopWhenIdle
from tests.support.packing import PACKING

#: One look at, or one run on, spoilt storage may take so long.
MOST_S = 60
#: So much more memory than at the start may be taken, address space included.
MOST_BYTES = 2 << 30
#: So much may be resident in the end.
MOST_RESIDENT = 700 << 20
_VICTIM = b"not to be touched"
_COMMANDS = [
    ["status"],
    ["status", "--output", "json"],
    ["layout"],
    ["migrations"],
    ["hosts"],
    ["policy"],
    ["watermark", "why", "cells"],
    ["watermark", "why", "cells", "--output", "json"],
    ["watermark", "list"],
    ["watermark", "bins", "cells"],
    ["checkpoint", "list"],
    ["checkpoint", "verify"],
    ["state", "scan", "cells"],
    ["state", "scan", "tables"],
    ["state", "get", "cells", "u1"],
    ["state", "diff", "4", "6", "ordered"],
    ["top", "--once"],
    ["top", "--output", "json"],
    ["load"],
    ["load", "--output", "json"],
    ["metrics", "--once"],
]


class Found(Exception):
    """Something that is not as it should be."""


class Place:
    """A store in a place with sentinels beside it."""

    def __init__(self, kind: str, folder: Path, remote: str = "") -> None:
        self.kind = kind
        self._folder = folder
        match kind:
            case "memory":
                self.store: Store = MemoryStore()
            case "local":
                self.store = LocalStore(folder / "a" / "storage")
            case _:
                self.store = open_store(remote)
        self._sentinels = self._set_out()

    def _set_out(self) -> dict[str, bytes]:
        """Make the sentinels; return them by their paths."""
        if self.kind == "memory":
            names = ["../victim", "../../victim", "/etc/victim"]
            found = dict.fromkeys(names, _VICTIM)
            self.store._files.update(found)  # type: ignore[attr-defined]
            return found
        if self.kind != "local":
            return {}
        names = ["victim", "a/victim", "a/victims/000000000001-e1-t0-l1-w0-a1", "victims/.old.tmp"]
        for name in names:
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_VICTIM)
        return dict.fromkeys(names, _VICTIM)

    def fill(self, files: Files) -> None:
        """Write files, whatever their names are, as somebody would who has no regard for ours."""
        if self.kind == "local":
            root = Path(self.store.location)
            for name, data in files.items():
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        elif self.kind == "memory":
            self.store._files.update(files)  # type: ignore[attr-defined]
        else:
            for name, data in files.items():
                with contextlib.suppress(HeadraceError):
                    self.store.write(name, data)

    def link(self, rng: random.Random) -> str:
        """Let a folder or a file be a link that leads outside."""
        if self.kind != "local" or rng.random() < 0.9:
            return ""
        root = Path(self.store.location)
        name = rng.choice(["runs", "manifests", "outputs", "beats", "pins", "streams"])
        path = root / name
        if path.is_dir():
            shutil.rmtree(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(self._folder / "a" / "victims")
        return f"; {name} is a link"

    def check(self) -> None:
        """Check that no sentinel was touched, and nothing was made beside the store."""
        if self.kind == "memory":
            files: dict[str, bytes] = self.store._files  # type: ignore[attr-defined]
            there = {name: files.get(name) for name in self._sentinels}
        elif self.kind == "local":
            outside = [
                p for p in self._folder.rglob("*") if p.is_file() and "storage" not in p.parts
            ]
            copies = {p for p in outside if p.is_relative_to(self._folder / "copy")}
            there = {
                str(p.relative_to(self._folder)): p.read_bytes() for p in outside if p not in copies
            }
        else:
            return
        if there != self._sentinels:
            raise Found(f"outside of the storage there is {there}")


@contextlib.contextmanager
def within(seconds: int) -> Iterator[None]:
    """Interrupt what takes too long."""

    def late(*_: Any) -> None:
        raise Found(f"it takes longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def looks(store: Store, to: Store, rng: random.Random) -> dict[str, Callable[[], Any]]:
    """Return what is done with the storage of a pipeline, in the order in which it is done."""
    checkpoints = Checkpoints(store)

    def read() -> None:
        with checkpoints.open() as checkpoint:
            for component in checkpoint.components:
                for section in checkpoint.component(component).sections:
                    checkpoint.read(component, section)

    def run() -> None:
        with gone_on(store) as harness:
            for _ in range(3):
                harness.push_many("items", more_items())
                harness.step()
                harness.clock("+600s")
            harness.resume()
            harness.step()

    commands = rng.sample(_COMMANDS, 3)
    return {
        "open": lambda: Ledger(store).open(),
        "versions": checkpoints.versions,
        "verify": lambda: list(checkpoints.verify()),
        "read": read,
        **{" ".join(command): lambda c=command: told(store, c) for command in commands},
        "copy": lambda: checkpoints.copy(None, to),
        "clean": lambda: checkpoints.clean(NOW_US),
        "run": run,
    }


def told(store: Store, command: list[str]) -> None:
    """Let the command line say something of it."""
    result = CliRunner().invoke(main, [*command, "--storage", store.location])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if "\x1b" in result.output or "\0" in result.output:
        raise Found(f"control characters are printed: {result.output!r}")


def read_inbox(store: Store) -> None:
    """Let a pipeline read an inbox, until there is nothing left."""
    pipeline = hr.Pipeline("reads")
    notes = pipeline.inject("notes", Inbox(store, Note, event_time="at", clean=True))

    class Count(hr.Computation):
        n = hr.ValueState(int, default=0)

        def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
            self.n.value += len(record.value.text)

    pipeline.compute("count", Count(), keys={notes: "n"})
    clock = StopWhenIdle()
    driver = Driver(
        pipeline,
        MemoryStore(),
        InlineRunner(0),
        workers=2,
        bins=4,
        settings=Settings(poll_us=1),
        clock=clock,
        nonce=lambda: "n",
    )
    clock.driver = driver
    try:
        driver.run()
    finally:
        driver.close()


def case(number: int, seed: int, kind: str, remote: str) -> tuple[str, list[str]]:
    """Try one spoilt storage; return what was spoilt, and what is not as it should be."""
    rng = random.Random(f"{seed}/{number}")
    folder = Path(tempfile.mkdtemp(prefix="hostile-"))
    try:
        place = Place(kind, folder, remote)
        problems: list[str] = []
        of_inbox = rng.random() < 0.2
        files, what = (
            spoilt_inbox(inbox_files(), rng)
            if of_inbox
            else spoilt(pipeline_files(rng.choice(PACKING)), rng)
        )
        place.fill(files)
        what += place.link(rng)
        to: Store = MemoryStore() if kind != "local" else LocalStore(folder / "copy")
        things = (
            {"inbox": lambda: read_inbox(place.store)} if of_inbox else looks(place.store, to, rng)
        )
        for name, do in things.items():
            try:
                with within(MOST_S):
                    do()
                place.check()
            except HeadraceError:
                pass
            except Exception:
                problems.append(f"{name}: {traceback.format_exc(limit=-6)}")
            try:
                place.check()
            except Found as error:
                problems.append(f"{name}: {error}")
        return what, problems
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def most_resident() -> int:
    """Return the most bytes that were resident. (``getrusage`` counts what the starting process had.)"""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def campaign(cases: int, seed: int, kind: str, remote: str, first: int) -> dict[str, Any]:
    """Try many; return figures, and what is not as it should be."""
    [pipeline_files(how) for how in PACKING]
    inbox_files()
    began = time.perf_counter()
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MOST_BYTES, resource.RLIM_INFINITY))
    found = []
    slowest = (0.0, -1)
    for number in range(first, first + cases):
        start = time.perf_counter()
        where = f"{remote}/{number}" if remote else ""
        what, problems = case(number, seed, kind, where)
        slowest = max(slowest, (time.perf_counter() - start, number))
        if problems:
            found.append({"case": number, "what": what, "problems": problems})
    resident = most_resident()
    if resident > MOST_RESIDENT:
        found.append({"case": -1, "what": "", "problems": [f"{resident >> 20} MB were resident"]})
    return {
        "store": kind,
        "cases": cases,
        "seed": seed,
        "seconds": time.perf_counter() - began,
        "slowest_s": slowest[0],
        "slowest": slowest[1],
        "resident_mb": resident >> 20,
        "found": found,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", default="memory")
    parser.add_argument("--remote", default="")
    asked = parser.parse_args()
    said = campaign(asked.cases, asked.seed, asked.store, asked.remote, asked.first)
    json.dump(said, sys.stdout)
