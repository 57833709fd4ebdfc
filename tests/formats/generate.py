"""Write the fixtures of the format: ``python -m tests.formats.generate tests/formats``.

Each was written once, by the version that released what is in it, and is there to be read for ever; this
says how the files came about. A folder that is there is left alone.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

import headrace as hr
from headrace.control.control import Control
from headrace.storage import LocalStore
from headrace.testing import drive
from tests.formats import reshaped, uncheckpointed
from tests.formats.kept_pipeline import BINS, SETTINGS, draw, found, gone_on_with, items, taken_over


def first(folder: Path) -> None:
    """Run a pipeline through all that leaves traces in storage, and into a crash."""
    storage = folder / "storage"
    storage.mkdir(parents=True)
    with drive(draw(), storage=storage, workers=2, bins=BINS, settings=SETTINGS) as t:
        t.push_many("items", items(0, 6))
        t.run()
        control = Control(LocalStore(storage))
        control.ask("remove", ["gone"])
        control.ask("pause")
        control.ask("resume")
        move = t.rescale(workers=3, strategy=hr.batched(3))
        t.push_many("items", items(6, 9))
        t.run()
        move.wait()
        t.push_many("items", items(9, 12))
        t.run()
        expected = {"stored": found(t)}
        t.push_many("items", items(12, 15))
        t.crash("before_commit")  # its intent is durable: a weak sink has seen what it came to
    with tempfile.TemporaryDirectory() as copied:
        shutil.copytree(storage, copied, dirs_exist_ok=True)
        with taken_over(copied) as t:
            expected.update(gone_on_with(t))
    write(folder, expected)


def versions(folder: Path) -> None:
    """Change the shape of state, and work on some of it only, before all of it is written again."""
    with drive(reshaped.draw(second=False), storage=folder / "storage", settings=SETTINGS) as t:
        t.push_many("items", items(0, 6))
        t.run()
        t.resume(pipeline=reshaped.draw(second=True))
        t.push_many("items", items(6, 7))
        t.run()
        write(folder, reshaped.found(t))


def between_checkpoints(folder: Path) -> None:
    """Leave light steps, and results that no sink has received."""
    uncheckpointed.left_unreceived(folder)
    with tempfile.TemporaryDirectory() as copied:
        shutil.copytree(folder, copied, dirs_exist_ok=True)
        went_on = uncheckpointed.gone_on_with(Path(copied))
    write(folder, {"stored": uncheckpointed.found(folder), **went_on})


def write(folder: Path, expected: object) -> None:
    """Write what was found as plain JSON."""
    text = json.dumps(expected, indent=1, sort_keys=True)
    (folder / "expected.json").write_text(f"{text}\n")


if __name__ == "__main__":
    for name, generate in (
        ("v1", first),
        ("v1-versions", versions),
        ("v1-light", between_checkpoints),
        ("v2", first),  # (with files that are packed into manifests)
    ):
        folder = Path(sys.argv[1]) / name
        if not folder.exists():
            generate(folder)
