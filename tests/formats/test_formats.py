"""Storage that was written by any version since the format was released is read, and gone on with."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import NewerFormat
from headrace.testing import drive
from tests.formats import reshaped, uncheckpointed
from tests.formats.kept_pipeline import found, gone_on_with, looked_at, taken_over

HERE = Path(__file__).parent


def copied(name: str, folder: Path) -> tuple[Path, Any]:
    """Return a copy of a fixture's storage, and what is to be found in it."""
    storage = shutil.copytree(HERE / name / "storage", folder / name)
    return storage, json.loads((HERE / name / "expected.json").read_text())


def plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


@pytest.mark.parametrize("name", ["v1", "v2"])
def test_all_that_a_version_stored_is_read_as_it_was(tmp_path: Path, name: str) -> None:
    storage, expected = copied(name, tmp_path)
    assert plain(found(looked_at(str(storage)))) == expected["stored"]


@pytest.mark.parametrize("name", ["v1", "v2"])
def test_what_a_version_stored_is_gone_on_with_to_the_same_end(tmp_path: Path, name: str) -> None:
    """With the step that it was about to commit, its timers and posts, and what it retained."""
    storage, expected = copied(name, tmp_path)
    with taken_over(str(storage)) as t:
        went_on = plain(gone_on_with(t))
    for part in ("gone_on_with", "read_again", "said"):
        assert went_on[part] == expected[part]
    since = plain(found(looked_at(str(storage))))
    assert since["counts"]["keeps"] == 2 * 18, (
        "records and their posts: what is written since is read"
    )


def test_rows_of_older_versions_are_read_as_they_were_when_versions_were_new(
    tmp_path: Path,
) -> None:
    storage, expected = copied("v1-versions", tmp_path)
    with drive(reshaped.draw(second=True), storage=storage, settings=reshaped.SETTINGS) as t:
        assert plain(reshaped.found(t)) == expected
        t.end()
        t.run()
        assert sorted(o.value for o in t.outputs("out")) == [
            f"{n} nothing" for n in (0, 0, 1, 2, 3, 4, 5, 5)
        ]


def test_steps_between_checkpoints_are_computed_again_and_an_inbox_is_read_on(
    tmp_path: Path,
) -> None:
    folder = shutil.copytree(HERE / "v1-light", tmp_path / "light")
    expected = json.loads((folder / "expected.json").read_text())
    stored = plain(uncheckpointed.found(folder))
    assert stored == expected.pop("stored")
    assert stored["light"] and stored["unstaged"] and sum(stored["unreleased"].values())
    assert plain(uncheckpointed.gone_on_with(folder)) == expected
    for key, said in expected["said"].items():
        counted = [line.split(": ") for line in said if ": " in line]
        assert [int(number) for number, _ in counted] == list(range(1, len(counted) + 1))
        assert all("xyz"[int(n) % 3] == key for _, n in counted)
    assert sum(": " in line for said in expected["said"].values() for line in said) == 2 * 6 * 4


@pytest.mark.parametrize("kind", ["manifests", "intents"])
def test_a_newer_format_is_refused_and_nothing_is_written(tmp_path: Path, kind: str) -> None:
    storage, _ = copied("v1", tmp_path)
    newest = max((storage / kind).iterdir())
    envelope, body = newest.read_bytes().split(b"\n", 1)
    name, _, digest = envelope.split(b" ")
    reads = 2 if kind == "manifests" else 1
    newest.write_bytes(b"%s %d %s\n" % (name, reads + 1, digest) + body)
    before = {path.name for path in (storage / "manifests").iterdir()}
    with pytest.raises(
        NewerFormat, match=f"has format {reads + 1}; this version reads up to {reads}"
    ):
        taken_over(str(storage)).run()
    after = {path.name for path in (storage / "manifests").iterdir()}
    assert len(after - before) == (kind == "intents"), (
        "at most the claim of who looks for an intent"
    )


def test_the_fixtures_are_small_and_as_they_were_committed() -> None:
    for folder in (HERE / name for name in COMMITTED):
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        digest = hashlib.blake2b(digest_size=8)
        for path in files:
            digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
        assert digest.hexdigest() == COMMITTED[folder.name]
        assert sum(path.stat().st_size for path in files) < 200_000


#: They are never written again: a format that changes gets a fixture of its own.
COMMITTED = {
    "v1": "21bac34fa7d82d8d",
    "v1-versions": "d15bab73538ead26",
    "v1-light": "b41c8b786af6cd0e",
    "v2": "81fcdafd331fe467",
}
