"""Parcels as files of the host."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import pytest

from headrace.protocol.parcels import (
    SPOOL_BYTES,
    Entry,
    Parcel,
    ParcelHeader,
    ParcelLost,
    Spooled,
    spool_large,
)
from headrace.runners.spark.spool import HostSpool, make_directory

HEADER = ParcelHeader(1, 0, "7", 1, 2, 0)


def parcel(*bodies: bytes) -> Parcel:
    return Parcel(HEADER, [Entry("it", 0, number, 1, body) for number, body in enumerate(bodies)])


def test_what_is_large_is_put_aside_and_found_again(tmp_path: Path) -> None:
    spool, bodies = HostSpool(str(tmp_path)), (b"a" * SPOOL_BYTES, b"", b"b" * 10)
    sent = spool_large(parcel(*bodies), "name", spool)
    assert not any(entry.body for entry in sent.entries)
    assert [bytes(entry.content(spool)) for entry in sent.entries] == list(bodies)
    passed_on = spool_large(sent, "another", spool)
    assert [bytes(entry.content(spool)) for entry in passed_on.entries] == list(bodies)
    assert os.listdir(tmp_path) == ["name"], "what is aside already stays where it is"
    spool.clear()
    assert not os.listdir(tmp_path)


def test_what_is_small_travels_in_band(tmp_path: Path) -> None:
    small = parcel(b"abc")
    assert spool_large(small, "name", HostSpool(str(tmp_path))) is small


def test_without_room_a_parcel_travels_in_band(tmp_path: Path) -> None:
    spool = HostSpool(str(tmp_path / "is not there"))
    large = parcel(b"a" * SPOOL_BYTES)
    assert spool_large(large, "name", spool) is large


def test_a_file_that_is_cut_off_by_a_full_disk_is_not_taken_for_whole(tmp_path: Path) -> None:
    child = os.fork()
    if not child:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        got = HostSpool(str(tmp_path)).put("name", [b"a" * 150_000, b"b" * 80_000])
        os._exit(0 if got is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not os.listdir(tmp_path)


def test_what_is_lost_is_told_as_such(tmp_path: Path) -> None:
    spool = HostSpool(str(tmp_path / "directory"))
    spool.clear()
    with pytest.raises(ParcelLost):
        spool.get(Spooled("name", 0, 1))


def test_directories_of_dead_processes_are_removed_and_those_of_living_ones_stay(
    tmp_path: Path,
) -> None:
    own = Path(make_directory(str(tmp_path)))
    child = os.fork()
    if not child:
        make_directory(str(tmp_path))
        os._exit(0)
    os.waitpid(child, 0)
    assert len(list(tmp_path.iterdir())) == 2
    newest = Path(make_directory(str(tmp_path)))
    assert set(tmp_path.iterdir()) == {own, newest}
