"""The modelled disk loses what POSIX lets it lose, in every way, and nothing else."""

from __future__ import annotations

import os
from random import Random

import pytest

from tests.faults.power.disk import Deaf, Disk

CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
DRAWS = range(200)


def write(disk: Disk, path: str, data: bytes, *, synced: bool) -> None:
    descriptor = disk.open(path, CREATE)
    while data:
        data = data[disk.write(descriptor, data) :]
    if synced:
        disk.fsync(descriptor)
    disk.close(descriptor)


def sync(disk: Disk, folder: str) -> None:
    disk.fsync(disk.open(folder, os.O_RDONLY | os.O_DIRECTORY))


def found(disk: Disk) -> set[tuple[tuple[str, bytes], ...]]:
    """Return all that was found in many draws."""
    draws = [disk.after_loss(Random(seed)).files() for seed in DRAWS]
    return {tuple(sorted(files.items())) for files in [disk.after_loss(None).files(), *draws]}


def test_what_was_synced_with_its_name_stays_whatever_is_drawn() -> None:
    disk = Disk()
    disk.mkdir("/folder")
    sync(disk, "/")
    write(disk, "/folder/file", b"x" * 5_000, synced=True)
    sync(disk, "/folder")
    assert disk.unsynced == []
    assert found(disk) == {(("/", b""), ("/folder/", b""), ("/folder/file", b"x" * 5_000))}


def test_data_that_were_not_synced_are_missing_cut_zeros_or_whole() -> None:
    disk, data = Disk(), b"x" * 200
    write(disk, "/file", data, synced=False)
    sync(disk, "/")
    contents = {dict(files)["/file"] for files in found(disk)}
    assert {b"", data} < contents
    assert any(data.startswith(part) for part in contents - {b"", data}), "cut"
    assert any(set(part) == {0} for part in contents), "zeros"
    assert any(b"\0" in part and part.endswith(b"x") for part in contents), "a hole"


def test_each_name_that_was_not_synced_is_there_or_not_for_itself() -> None:
    disk = Disk()
    write(disk, "/old", b"1", synced=True)
    sync(disk, "/")
    disk.unlink("/old")
    write(disk, "/one", b"1", synced=True)
    write(disk, "/two", b"1", synced=True)
    names = {tuple(path[1:] for path, _ in files if path != "/") for files in found(disk)}
    assert len(names) == 8
    assert {(), ("old",), ("one", "two"), ("old", "one", "two")} < names


def test_a_directory_whose_name_was_not_synced_goes_with_all_that_is_in_it() -> None:
    disk = Disk()
    disk.mkdir("/folder")
    write(disk, "/folder/file", b"x", synced=True)
    sync(disk, "/folder")
    assert disk.unsynced == ["/folder"]
    assert {len(files) for files in found(disk)} == {1, 3}


@pytest.mark.parametrize("deaf", ["files", "directories", "all"])
def test_a_disk_that_does_not_sync_shows_the_same_and_loses_it(deaf: Deaf) -> None:
    disk = Disk(deaf)
    write(disk, "/file", b"x" * 100, synced=True)
    sync(disk, "/")
    assert disk.files()["/file"] == b"x" * 100
    assert disk.after_loss(None).files().get("/file") == (b"" if deaf == "files" else None)
