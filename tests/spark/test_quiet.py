"""The command on real Spark, as a process: what is on its terminal is ours and the user's."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace as hr
from headrace.ledger.ledger import Ledger
from headrace.storage import LocalStore
from tests.support.processes import wait_for

pytestmark = pytest.mark.spark

#: A busy machine takes its time.
LONGEST_S = 900
SOURCE = Path(hr.__file__).parents[1]
HITS = """
import sys
import headrace as hr
import msgspec

class Hit(msgspec.Struct):
    at: int
    page: str

class Visits(hr.Computation):
    seen = hr.ValueState(int, default=0)
    out = hr.Output(int)

    def process_record(self, ctx, record):
        self.seen.value += 1
        print("handled", record.value.page)
        if self.seen.value == 1:
            ctx.produce("out", self.seen.value)

def drawn(source):
    p = hr.Pipeline("visits")
    hits = p.inject("hits", source, watermark=hr.ascending())
    p.sink("out", p.compute("visits", Visits(), keys={hits: "page"}), hr.sinks.Console())
    return p
"""
FILES = """
from hits import Hit, drawn
import headrace as hr

def pipeline(watch=False):
    return drawn(hr.sources.Files("in/*.jsonl", event_time="at", type=Hit, watch=watch))

def watching():
    return pipeline(watch=True)
"""
STREAM = """
import headrace as hr
from hits import drawn

def frame(spark):
    print("partitions", spark.conf.get("spark.sql.shuffle.partitions"), "app", spark.sparkContext.appName)
    stream = spark.readStream.schema("at bigint, page string")
    return stream.option("maxFilesPerTrigger", 1).json("in")

def pipeline():
    return drawn(hr.sources.SparkStream(frame, event_time="at", checkpoint="query"))
"""
FIRST = re.compile(r"starting Spark; its log is in (\S+/spark\.log)")
#: All that a line on the terminal may be.
KNOWN = re.compile(
    r"starting Spark; .*|handled \S+|visits  .*|stopping after the running step|partitions .*|"
    r"\{.*\}|.*drained.*|.*stopped.*"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with pipelines and their input."""
    for name, text in {"hits.py": HITS, "files.py": FILES, "stream.py": STREAM}.items():
        (tmp_path / name).write_text(text)
    fill(tmp_path, 1)
    return tmp_path


def fill(folder: Path, files: int) -> None:
    """Write files of six records each."""
    (folder / "in").mkdir(exist_ok=True)
    lines = [f'{{"at": {at}, "page": "/{at % 3}"}}\n' for at in range(6)]
    for number in range(files):
        (folder / "in" / f"{number}.jsonl").write_text("".join(lines))


def environment(folder: Path) -> dict[str, str]:
    """Return what ``env -i`` leaves, a home, and where this checkout is."""
    return {"PATH": "/usr/bin:/bin", "HOME": str(folder / "home"), "PYTHONPATH": str(SOURCE)}


def command(*arguments: str) -> list[str]:
    """Return the command line of the installed program, by its whole path."""
    program = Path(sys.executable).with_name("headrace")
    return [str(program), "run", *arguments, "--storage", "st"]


def lines_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def check(text: str, folder: Path) -> None:
    """Check that a terminal begins with our line, and has nothing of Spark's."""
    lines = lines_of(text)
    first = FIRST.fullmatch(lines[0])
    assert first is not None, text
    log = Path(first[1])
    assert folder / "home" in log.parents
    assert log.is_file() and log.stat().st_mode & 0o077 == 0
    assert [line for line in lines if not KNOWN.fullmatch(line)] == [], text


@pytest.mark.drawn(2, "quiet programs")
def test_the_first_line_is_ours_and_nothing_of_sparks_follows_without_an_environment(
    folder: Path,
) -> None:
    ran = subprocess.run(
        command("files.py"),
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    check(ran.stdout, folder)
    handled = [line for line in lines_of(ran.stdout) if line.startswith("handled")]
    assert sorted(handled) == [f"handled /{at % 3}" for at in (0, 3, 1, 4, 2, 5)]


@pytest.fixture
def started(folder: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    """A command that runs until it is stopped, in a group of processes of its own."""
    if "stream.py" in request.param:
        fill(folder, FILES_OF_STREAM)
    with open(folder / "terminal", "wb") as output:
        process = subprocess.Popen(
            command(*request.param),
            cwd=folder,
            env=environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    yield process
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


#: A batch for each file. When the command is stopped, further batches wait.
FILES_OF_STREAM = 500
ENDLESS = [
    pytest.param(["files.py:watching"], id="files"),
    pytest.param(["stream.py", "--conf", "spark.sql.shuffle.partitions=3"], id="a streaming query"),
]


@pytest.mark.parametrize("started", ENDLESS, indirect=True)
@pytest.mark.drawn(2, "quiet programs")
def test_a_group_of_processes_that_gets_sigterm_ends_after_its_step_without_a_traceback(
    started: subprocess.Popen[bytes], folder: Path
) -> None:
    terminal = folder / "terminal"
    assert wait_for(
        lambda: terminal.read_text().count('"key"') == 3, process=started, timeout=LONGEST_S
    ), terminal.read_text()
    os.killpg(started.pid, signal.SIGTERM)
    assert started.wait(LONGEST_S) == 130, terminal.read_text()
    text = terminal.read_text()
    check(text, folder)
    assert "stopping after the running step" in text
    head = Ledger(LocalStore(folder / "st")).open()
    assert head is not None
    records = head.counts["visits"].records
    if "partitions" in text:
        assert "partitions 3 app headrace" in text
        assert records % 6 == 0 and records < 6 * FILES_OF_STREAM, "whole batches, and not all"
    else:
        assert records == 6


def test_what_spark_says_when_it_does_not_start_is_in_the_error(folder: Path) -> None:
    ran = subprocess.run(
        command("files.py", "--master", "nowhere://x"),
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    assert ran.returncode == 4
    assert FIRST.fullmatch(lines_of(ran.stderr)[0])
    assert "[HR404] Spark did not start" in ran.stderr
    assert "Master must either be yarn or start with spark" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_without_java_the_error_says_what_to_install(folder: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bin"
    bare.mkdir()
    for name in ("bash", "dirname", "basename", "ps", "env", "uname", "grep"):
        for place in ("/usr/bin", "/bin"):
            if (Path(place) / name).exists() and not (bare / name).exists():
                (bare / name).symlink_to(Path(place) / name)
    ran = subprocess.run(
        command("files.py"),
        cwd=folder,
        env={**environment(folder), "PATH": str(bare)},
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    assert ran.returncode == 4, ran.stderr
    assert "remedy: install a JDK, version 17 or newer" in ran.stderr
    assert "Traceback" not in ran.stderr


PROGRAM = """
import logging, signal, sys
import headrace as hr

logging.basicConfig(format="%(message)s", stream=sys.stdout)
logging.getLogger("headrace").setLevel("INFO")
before = signal.getsignal(signal.SIGINT)
spark = hr.spark_session(master="local[1]", conf={"spark.own": "1"})
assert signal.getsignal(signal.SIGINT) is before
print(spark.range(3).count(), spark.sparkContext.master, spark.conf.get("spark.own"), flush=True)
assert hr.spark_session() is spark
hr.spark_session(conf={"spark.own": "2"}, packages=["a:b:1"])
spark.stop()
print(hr.spark_session(conf={"spark.own": "2"}).conf.get("spark.own"), flush=True)
"""


@pytest.mark.drawn(2, "quiet programs")
def test_a_program_gets_the_same_session_and_is_warned_of_what_it_does_not_have(
    folder: Path,
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    first, *others = lines_of(ran.stdout)
    assert FIRST.fullmatch(first)
    assert others == [
        "3 local[1] 1",
        "the active session does not have the package a:b:1: start it with that package",
        "spark.own is 1 in the active session, although 2 was asked for: "
        "set it where the session is started",
        "2",
    ]
