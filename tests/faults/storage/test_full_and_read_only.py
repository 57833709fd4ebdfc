"""A real file system that is full, limits files, or cannot be written: a pipeline stops, and says why.

When there is room again, or it may be written, the pipeline goes on from its last step; nothing is lost.
(What the errors of remote storage become is in ``tests/unit/storage/test_object_stores.py`` and
``test_hdfs.py``.)
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.driver.driver import Driver
from headrace.errors import Damaged, StorageFull, StorageReadOnly
from headrace.runners.inline import InlineRunner
from headrace.storage import LocalStore
from headrace.storage.soft import HostFiles
from tests.faults.crashpoints.scenarios import SPEC, UPKEEP
from tests.property.oracle.model import Model
from tests.support.packing import packing
from tests.support.pipelines import Collected, draw, run_inline
from tests.support.results import recording

ROOT = Path(__file__).parents[3]
ROOMY = "size=4m,nr_inodes=4000"


class SmallDisk:
    """A file system of its own, in memory, whose size and rights change while it is used."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def remount(self, options: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{options}", self.place], check=True)

    def folder(self) -> Path:
        """Return an empty folder; what was in it before is gone."""
        found = self.place / "storage"
        shutil.rmtree(found, ignore_errors=True)
        found.mkdir()
        return found


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    mount = ["mount", "-t", "tmpfs", "-o", ROOMY, "headrace-test", str(tmp_path)]
    if (
        shutil.which("mount") is None
        or subprocess.run(mount, capture_output=True, check=False).returncode
    ):
        pytest.skip("nothing may be mounted here")
    yield SmallDisk(tmp_path)
    subprocess.run(["umount", tmp_path], check=True)


def expected() -> dict[str, Any]:
    model = Model(SPEC, hr.hash_key)
    model.run()
    return dict(model.outputs)


def finish(folder: Path, collected: Collected) -> None:
    run_inline(draw(SPEC, collected), store=LocalStore(folder), rows=SPEC.rows, workers=2, **UPKEEP)


def fill_up(disk: SmallDisk, option: str) -> bool:
    """Run where there is little room, then where there is enough; say whether the room was too little."""
    disk.remount(ROOMY)
    folder, collected, stopped = disk.folder(), Collected(), False
    disk.remount(option)
    try:
        finish(folder, collected)
    except StorageFull as error:
        stopped = True
        assert "make room and start again" in str(error)
    disk.remount(ROOMY)
    finish(folder, collected)
    assert collected.rows() == expected(), option
    return stopped


#: Room for so many pages, or for so many files and directories; a run needs fewer than 60 of either.
LIMITS = [f"size={4 * n}k" for n in range(2, 64)] + [f"nr_inodes={n}" for n in range(4, 64)]


@pytest.mark.usefixtures("own_files")
def test_a_disk_that_is_full_at_any_time_stops_with_a_typed_error_and_resumes(
    disk: SmallDisk,
) -> None:
    assert sum(fill_up(disk, limit) for limit in LIMITS[::11]) >= 8


@pytest.mark.soak
@pytest.mark.usefixtures("own_files")
def test_a_disk_that_is_full_at_each_page_and_each_file(disk: SmallDisk) -> None:
    with recording("disk_full") as keep:
        stopped = sum(fill_up(disk, limit) for limit in LIMITS)
        figures = {"limits": len(LIMITS), "stopped": stopped}
        print(figures)
        keep(figures)
        assert len(LIMITS) // 2 < stopped < len(LIMITS), "there also was room enough"


@pytest.mark.parametrize(
    ("how", "writes"), [("packed", 3), ("packed", 8), ("files", 3), ("files", 15), ("files", 30)]
)
def test_a_quota_that_is_used_up_stops_with_a_typed_error_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, writes: int
) -> None:
    """The error of a quota is the system's, raised in its place: there are none on most test machines."""
    write, left = os.write, [writes]

    def within_quota(descriptor: int, data: Any) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        return write(descriptor, data)

    collected = Collected()
    with monkeypatch.context() as patched, packing(how):
        patched.setattr("headrace.storage.local.os.write", within_quota)
        with pytest.raises(StorageFull, match="make room and start again"):
            run_inline(draw(SPEC, collected), store=LocalStore(tmp_path), rows=SPEC.rows, **UPKEEP)
    run_inline(draw(SPEC, collected), store=LocalStore(tmp_path), rows=SPEC.rows, **UPKEEP)
    model = Model(SPEC, hr.hash_key)
    model.run()
    assert collected.rows() == dict(model.outputs)


@pytest.mark.parametrize("at", [0, 1, 3, 5])
def test_a_disk_that_becomes_read_only_stops_with_a_typed_error_and_resumes(
    disk: SmallDisk, at: int
) -> None:
    """As a kernel does with a file system that has errors: after a step, or before the first."""
    folder, collected = disk.folder(), Collected()
    driver = Driver(
        draw(SPEC, collected),
        LocalStore(folder),
        InlineRunner(),
        workers=2,
        bins=16,
        drain=True,
        settings=hr.Settings(limit=hr.Limit(SPEC.rows, 1 << 30), **UPKEEP),
    )

    def note(summary: hr.StepSummary) -> None:
        if summary.head.step == at:
            disk.remount("ro")

    driver.listeners.append(note)
    if at == 0:
        disk.remount("ro")
    with pytest.raises(StorageReadOnly, match="give this user the right to write there"):
        driver.run()
    driver.close()
    disk.remount("rw")
    finish(folder, collected)
    assert collected.rows() == expected()


def elsewhere(program: str, *arguments: object) -> str:
    """Run a program in a process of its own; return what it says."""
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout + done.stderr


def test_a_directory_that_is_anothers_is_a_typed_error(tmp_path: Path) -> None:
    """Runs as another user where the tests run as root, whom permissions do not stop."""
    program = (
        "import os, sys\n"
        "from headrace.storage import LocalStore\n"
        "store = LocalStore(sys.argv[1])\n"
        "if os.getuid() == 0: os.setuid(65534)\n"
        "try: store.create('name', b'x')\n"
        "except Exception as error: print(type(error).__name__)\n"
    )
    target = tmp_path / "closed"
    target.mkdir(mode=0o555)
    for parent in target.parents:
        if parent.stat().st_uid == os.getuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    assert elsewhere(program, target).strip() == StorageReadOnly.__name__


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc here")
def test_where_no_directory_can_be_made_is_a_typed_error_that_says_what_to_do() -> None:
    """There even the administrator is told that no such directory is there."""
    with pytest.raises(StorageReadOnly, match="or choose another storage=") as refused:
        LocalStore("/proc/headrace/deep").create("probes/name", b"x")
    assert "/proc/headrace/deep" in refused.value.place


def test_a_user_whose_files_may_not_grow_is_told_so_and_goes_on_when_they_may(
    tmp_path: Path,
) -> None:
    """A limit of the operating system on the size of files, lifted afterwards."""
    program = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from tests.faults.storage.test_full_and_read_only import finish\n"
        "from tests.support.pipelines import Collected\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))\n"
        "try: finish(Path(sys.argv[1]), Collected())\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    for limit in (100, 1500):
        folder, collected = tmp_path / str(limit), Collected()
        said = elsewhere(program, folder, limit)
        assert said.startswith("StorageFull") and "make room and start again" in said
        finish(folder, collected)
        found = collected.rows()
        for sink, steps in expected().items():  # what was released before the stop is not repeated
            assert found.get(sink, []) == steps[len(steps) - len(found.get(sink, [])) :]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
@pytest.mark.parametrize("kind", [LocalStore, HostFiles])
def test_what_is_no_file_under_a_name_is_damage(tmp_path: Path, kind: Any, make: Any) -> None:
    make(tmp_path / "name")
    with pytest.raises(Damaged, match="name is not a file") as refused:
        kind(tmp_path).read("name")
    assert refused.value.place == str(tmp_path / "name")
