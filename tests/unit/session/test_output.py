"""What the JVM prints is passed on, or goes to a file when it is Spark's own as it starts and ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.session.output import JvmOutput

DAEMON = (
    "Traceback (most recent call last):\n"
    '  File "/x/pyspark/daemon.py", line 10, in manager\n'
    "    code = worker(sock)\n"
    "BrokenPipeError: [Errno 32] Broken pipe\n"
)
WORKER = DAEMON.replace("BrokenPipeError: [Errno 32] Broken pipe", "MemoryError")
USERS = (
    "Traceback (most recent call last):\n"
    '  File "/home/ann/visits.py", line 3, in process_record\n'
    "    int('x')\n"
    "ValueError: invalid literal\n"
)

Printer = Callable[[str], None]


@pytest.fixture
def jvm(tmp_path: Path) -> Iterator[tuple[JvmOutput, Printer, Path]]:
    """An output, a function that prints to it and waits until that has arrived, and its file."""
    ours, theirs = os.pipe()
    output = JvmOutput(ours, tmp_path / "output.log")

    def print_(text: str) -> None:
        with output.marked("the mark", 30):
            os.write(theirs, f"{text}the mark\n".encode())

    yield output, print_, tmp_path / "output.log"
    os.close(theirs)
    output.finished(30)


def test_nothing_is_shown_before_the_session_is_there(
    jvm: tuple[JvmOutput, Printer, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    output, print_, file = jvm
    print_("WARNING: Using incubator modules\n")
    assert file.read_text() == "WARNING: Using incubator modules\n"
    assert file.stat().st_mode & 0o077 == 0
    print_("Exception: no\n\tat a.B(C.java)\n")
    assert output.hidden_lines(3) == ["WARNING: Using incubator modules", "Exception: no"]
    output.show()
    print_("a handler's print\nand a half")
    assert capsys.readouterr().err == "a handler's print\nand a half\n"


def test_at_the_end_tracebacks_of_sparks_processes_are_not_shown_but_those_of_users_are(
    jvm: tuple[JvmOutput, Printer, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    output, print_, file = jvm
    output.show()
    print_(WORKER)
    assert capsys.readouterr().err == WORKER, "in the middle of a run, it is shown"
    output.end()
    print_(f"last words\n{WORKER}{USERS}more\n")
    assert capsys.readouterr().err == f"last words\n{USERS}more\n"
    assert file.read_text() == WORKER
    output.show()
    print_(WORKER)
    assert capsys.readouterr().err == WORKER, "another session has begun"


def test_in_the_middle_of_a_run_only_lost_connections_of_sparks_processes_are_not_shown(
    jvm: tuple[JvmOutput, Printer, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    output, print_, file = jvm
    output.show()
    users_pipe = USERS.replace(
        "ValueError: invalid literal", "BrokenPipeError: a socket of the user's"
    )
    of_both = users_pipe.replace("  File", DAEMON.splitlines(keepends=True)[1] + "  File", 1)
    shown = [WORKER, USERS, users_pipe, of_both, "Traceback (most recent call last):\nno frame\n"]
    for text in shown:
        print_(f"before\n{DAEMON}{text}after\n")
        assert capsys.readouterr().err == f"before\n{text}after\n"
    assert file.read_text() == DAEMON * len(shown)


@pytest.mark.parametrize("come", range(1, len(DAEMON)))
def test_a_traceback_that_has_come_in_part_when_the_session_has_ended_is_not_shown(
    jvm: tuple[JvmOutput, Printer, Path], capsys: pytest.CaptureFixture[str], come: int
) -> None:
    output, print_, file = jvm
    output.show()
    output.end()
    print_(DAEMON[:come])
    print_(DAEMON[come:])
    if DAEMON[:come].startswith("Traceback (most recent call last):"):
        assert capsys.readouterr().err == ""
        assert file.read_text().replace("\n", "") == DAEMON.replace("\n", "")
    output.show()
    print_("of another session\n")
    assert capsys.readouterr().err.endswith("of another session\n")


@pytest.mark.parametrize("begun", range(1, DAEMON.count("\n")))
def test_tracebacks_that_two_processes_print_at_the_same_time_are_not_shown(
    jvm: tuple[JvmOutput, Printer, Path], capsys: pytest.CaptureFixture[str], begun: int
) -> None:
    output, print_, file = jvm
    output.show()
    output.end()
    lines = DAEMON.splitlines(keepends=True)
    both = "".join([*lines[:begun], *lines, *lines[begun:]])
    print_(f"first\n{both}last\n")
    assert capsys.readouterr().err == "first\nlast\n"
    assert file.read_text() == both


def test_a_traceback_that_is_cut_off_is_not_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = os.pipe()
    output = JvmOutput(ours, tmp_path / "output.log")
    output.show()
    output.end()
    os.write(theirs, USERS.splitlines(keepends=True)[0].encode() + b"  no end of line")
    os.close(theirs)
    output.finished(30)
    shown = capsys.readouterr().err
    assert shown == "Traceback (most recent call last):\n  no end of line\n"


def test_a_line_without_an_end_is_passed_on_in_pieces_of_bounded_size(
    jvm: tuple[JvmOutput, Printer, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    output, print_, _ = jvm
    output.show()
    print_("x" * 300_000 + "\n")
    shown = capsys.readouterr().err
    assert shown.replace("\n", "") == "x" * 300_000
    assert max(map(len, shown.split("\n"))) <= 1 << 17
