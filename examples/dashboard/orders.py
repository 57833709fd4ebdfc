"""Shops that order: they write lines into a file for each region, until they are stopped."""

from __future__ import annotations

import json
import random
import threading
import time
from pathlib import Path

REGIONS = ("eu-west", "us-east", "ap-south")
#: The shop with half of all orders.
BUSY = "harbour"
_EVERY_S = 0.1


class Shops:
    """Writes orders from a thread of its own.

    Args:
        folder: where the files are.
        rate: orders a second.
        silent_after_s: after so many seconds, the last region brings nothing more.
    """

    def __init__(self, folder: Path, rate: float, silent_after_s: float) -> None:
        self._folder = folder
        self._rate = rate
        self._silent_after_s = silent_after_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shops", daemon=True)

    def __enter__(self) -> Shops:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        rng, begun, sent = random.Random(7), time.monotonic(), 0
        files = [(self._folder / f"{region}.jsonl").open("a") for region in REGIONS]
        while not self._stop.wait(_EVERY_S):
            passed = time.monotonic() - begun
            due = int(passed * self._rate)
            open_files = files[:-1] if passed > self._silent_after_s else files
            for number in range(sent, due):
                shop = BUSY if number % 2 else f"shop {rng.randrange(400):03}"
                order = {
                    "shop": shop,
                    "cents": rng.randrange(1, 1_000),
                    "at": time.time_ns() // 1_000,
                }
                open_files[number % len(open_files)].write(json.dumps(order) + "\n")
            for file in files:
                file.flush()
            sent = due
