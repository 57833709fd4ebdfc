"""A random writer beside a watched directory, and a reader that crashes: each record is read once.

The writer creates, appends, renames, rotates (also to names that are no input), copies and truncates,
truncates and writes again, compresses and unpacks (and keeps both, or not), deletes, leaves empty files,
puts times back, and publishes hidden files. It knows which records stand in whole lines of visible files.
Whenever the reader says that nothing is left, it must have read all of these, and none twice. It may stop
with a typed error only when the writer destroyed what was not read.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.errors import BadInput, SourceChanged
from headrace.sources import Files, Limit
from headrace.sources.files import folders, known
from headrace.sources.formats import FormatName
from headrace.storage import MemoryStore


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstd,
}


class Writer:
    """Writes, and knows what stands where.

    Attributes:
        texts: the content of each file, unpacked, by its path below the folder.
        read: the records that were read, as the reader says.
        destroyed: whether records were destroyed that were not read.
    """

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder = folder
        self.chance = chance
        self.texts: dict[str, str] = {}
        self.read: Counter[int] = Counter()
        self.destroyed = False
        self.next = 0
        self.packing: tuple[str, str] | None = None
        self.cut: set[str] = set()  # files that were copied and truncated since the reader looked
        self.twice: set[str] = set()  # files that were copied by their compression since it looked
        self.unpacking: tuple[str, str] | None = None
        self.rotated = False

    def lines(self, count: int) -> str:
        rows = range(self.next, self.next + count)
        self.next += count
        pad = "x" * self.chance.choice([0, 0, 30, 700])
        return "".join(f'{{"at": {n}, "n": {n}, "pad": "{pad}"}}\n' for n in rows)

    def there(self) -> set[int]:
        """Return the records in whole lines of visible files."""
        busy = self.unpacking or ()
        return {
            json.loads(line)["n"]
            for name, text in self.texts.items()
            if not name.startswith((".", "_")) and name not in busy
            for line in text.splitlines(keepends=True)
            if line.endswith("\n")
        }

    def plain(self) -> list[str]:
        busy = {*(self.packing or ())[:1], *(self.unpacking or ()), *self.twice}
        return sorted(of for of in self.texts if not of.endswith(tuple(PACKERS)) and of not in busy)

    def pick(self, *, input_only: bool = True) -> str | None:
        names = [of for of in self.plain() if of.endswith(".jsonl") or not input_only]
        if self.rotated and input_only and "app.jsonl" in names:
            names.remove(
                "app.jsonl"
            )  # (a log that is rotated begins anew; that is how it is known)
        return self.chance.choice(names) if names else None

    def fresh_name(self) -> str:
        return f"{self.chance.choice('abcdm.')}{self.chance.randrange(10**6):06d}.jsonl"

    def lose(self, name: str) -> None:
        """Note that what a file holds is destroyed."""
        text = self.texts.pop(name)
        unread = not text.endswith("\n") and bool(text)
        for line in text.splitlines(keepends=True):
            unread = unread or (line.endswith("\n") and not self.read[json.loads(line)["n"]])
        self.destroyed = self.destroyed or unread

    # -- what it does -------------------------------------------------------------------------

    def create(self) -> None:
        name = self.fresh_name()
        self.texts[name] = self.lines(self.chance.randrange(4))
        (self.folder / name).write_text(self.texts[name])

    def append(self) -> None:
        name = self.pick(input_only=False)
        if name is None:
            return
        text = self.lines(self.chance.randrange(1, 4))
        old = self.texts[name]
        if old and not old.endswith("\n"):
            text = self.torn.pop(name) + text
        cut = self.chance.choice([0, 0, 5])
        self.torn[name] = text[len(text) - cut :] if cut else ""
        text = text[: len(text) - cut] if cut else text
        self.texts[name] = old + text
        with (self.folder / name).open("a") as file:
            file.write(text)

    @property
    def torn(self) -> dict[str, str]:
        return self.__dict__.setdefault("_torn", {})

    def rename(self) -> None:
        name = self.pick()
        if (
            name is not None
        ):  # (a file that is hidden is taken away: if it comes back it is a new one)
            self.move(name, "r" + self.fresh_name().lstrip("."))

    def move(self, name: str, to: str) -> None:
        (self.folder / name).rename(self.folder / to)
        self.texts[to] = self.texts.pop(name)
        if name in self.torn:
            self.torn[to] = self.torn.pop(name)
        if name in self.cut:
            self.cut.add(to)
            self.cut.remove(name)

    def rotate(self) -> None:
        """As log rotation does: app.2 goes, app.1 becomes app.2, app becomes app.1, and app begins anew."""
        if "app.2.jsonl" in self.plain() and "app.2.jsonl" not in self.cut:
            (self.folder / "app.2.jsonl").unlink()
            self.lose("app.2.jsonl")
        for old, new in (("app.1.jsonl", "app.2.jsonl"), ("app.jsonl", "app.1.jsonl")):
            if old in self.plain() and new not in self.texts:
                self.move(old, new)
        if "app.jsonl" not in self.texts:
            self.texts["app.jsonl"] = self.lines(2)
            (self.folder / "app.jsonl").write_text(self.texts["app.jsonl"])

    def logrotate(self) -> None:
        """As logrotate does: app.jsonl becomes app.jsonl.1, which is no input, and begins anew."""
        if "app.jsonl" not in self.plain() or "app.jsonl" in self.cut:
            return
        (self.folder / "app.jsonl").rename(self.folder / "app.jsonl.1")
        self.rotated = True
        if "app.jsonl.1" in self.texts:
            self.lose("app.jsonl.1")
        text, torn = self.texts.pop("app.jsonl"), self.torn.pop("app.jsonl", "")
        if any(self.read[n] for n in numbers(text)):
            self.texts["app.jsonl.1"], self.torn["app.jsonl.1"] = text, torn
        self.texts["app.jsonl"] = self.lines(2)
        (self.folder / "app.jsonl").write_text(self.texts["app.jsonl"])

    def leave_empty(self) -> None:
        for _ in range(3):
            name = self.fresh_name().lstrip(".")
            self.texts[name] = ""
            (self.folder / name).touch()
            os.utime(self.folder / name, (1_000_000, 1_000_000))

    def put_time_back(self) -> None:
        os.utime(self.folder, (1_000_000, 1_000_000))

    def copy_and_truncate(self) -> None:
        name = self.pick()
        if name is None or not self.texts[name] or not self.texts[name].endswith("\n"):
            return
        if name.startswith(".") or not self.is_read(name):
            return  # (who copies what was not looked at yet makes other records of it)
        to = "b" + self.fresh_name()
        (self.folder / to).write_text(self.texts[name])
        os.truncate(self.folder / name, 0)
        self.cut.add(name)
        self.texts[to], self.texts[name] = self.texts[name], ""

    def is_read(self, name: str) -> bool:
        lines = self.texts[name].splitlines()
        return all(self.read[json.loads(line)["n"]] for line in lines)

    def write_again(self) -> None:
        name = self.pick()
        if name is None:
            return
        self.lose(name)
        self.torn.pop(name, None)
        self.texts[name] = self.lines(self.chance.randrange(1, 5))
        (self.folder / name).write_text(self.texts[name])

    def delete(self) -> None:
        name = self.pick()
        if name is not None and name not in self.cut:  # (then nothing would say that it is a copy)
            (self.folder / name).unlink()
            self.lose(name)

    def pack(self) -> None:
        """Compress a file as gzip does: its result grows beside it, and then the file goes."""
        if self.packing is not None:
            name, ending = self.packing
            whole = PACKERS[ending](self.texts[name].encode())
            (self.folder / (name + ending)).write_bytes(whole)
            (self.folder / name).unlink()
            self.texts[name + ending] = self.texts.pop(name)
            self.twice.add(name + ending)
            self.packing = None
            return
        name = self.pick() or ""
        is_whole = self.texts.get(name, "").endswith("\n")
        if is_whole and not name.startswith(".") and name not in self.cut:
            ending = self.chance.choice([*PACKERS])
            if name + ending in self.texts:
                return  # (no program compresses into a file that is there)
            self.packing = name, ending
            whole = PACKERS[ending](self.texts[name].encode())
            (self.folder / (name + ending)).write_bytes(whole[: self.chance.randrange(len(whole))])

    def pack_and_keep(self) -> None:
        """As ``gzip -kf`` does."""
        name = self.pick()
        if name is None or name.startswith(".") or name in self.cut:
            return
        text = self.texts[name]
        if not text.endswith("\n") or not self.is_read(name):
            return
        to = name + self.chance.choice([*PACKERS])
        if to in self.twice or not text.startswith(self.texts.get(to, "")):
            return
        self.texts[to] = text
        (self.folder / "_packed").write_bytes(PACKERS[os.path.splitext(to)[1]](text.encode()))
        (self.folder / "_packed").rename(self.folder / to)
        self.twice |= {name, to}

    def unpack(self) -> None:
        """As gunzip does: the content grows beside the compressed file, which then goes, or not."""
        if self.unpacking is not None:
            name, to = self.unpacking
            self.texts[to] = self.texts[name]
            (self.folder / to).write_text(self.texts[to])
            self.unpacking = None
            if self.chance.randrange(2):
                (self.folder / name).unlink()
                del self.texts[name]
                self.twice.add(to)
            else:
                self.twice |= {name, to}
            return
        there = [of for of in self.texts if of.endswith(tuple(PACKERS)) and of not in self.twice]
        if not there:
            return
        name = self.chance.choice(sorted(there))
        to = os.path.splitext(name)[0]
        beside = [of for of in self.texts if of.startswith(to)]
        if len(beside) > 1 or self.packing is not None or not self.is_read(name):
            return
        self.unpacking = name, to
        self.texts[to] = ""
        text = self.texts[name]
        (self.folder / to).write_text(text[: self.chance.randrange(len(text))])

    def create_packed(self) -> None:
        ending = self.chance.choice([*PACKERS])
        name = self.fresh_name() + ending
        self.texts[name] = "".join(self.lines(1) for _ in range(self.chance.randrange(1, 3)))
        halves = [line + "\n" for line in self.texts[name].splitlines()]
        (self.folder / name).write_bytes(b"".join(PACKERS[ending](of.encode()) for of in halves))

    def publish(self) -> None:
        hidden = [name for name in self.plain() if name.startswith(".")]
        if hidden:
            self.move(self.chance.choice(hidden), "a" + self.fresh_name().lstrip("."))


def numbers(text: str) -> list[int]:
    return [json.loads(line)["n"] for line in text.splitlines(True) if line.endswith("\n")]


ACTS = [
    "create",
    "create",
    "append",
    "append",
    "append",
    "rename",
    "rotate",
    "rotate",
    "copy_and_truncate",
    "write_again",
    "delete",
    "pack",
    "pack",
    "create_packed",
    "publish",
    "logrotate",
    "logrotate",
    "leave_empty",
    "put_time_back",
    "pack_and_keep",
    "unpack",
    "unpack",
]


class Reader:
    """Reads in steps of random size, and crashes now and then."""

    def __init__(
        self,
        folder: Path,
        writer: Writer | ParquetWriter,
        chance: random.Random,
        format: FormatName = "jsonl",
    ) -> None:
        self.folder, self.writer, self.chance, self.format = folder, writer, chance, format
        self.store = MemoryStore()
        self.seen: set[str] = set()
        self.restart()
        self.position: Any = self.source.start()

    def restart(self) -> None:
        self.seen = set()
        self.source = Files(
            self.folder,
            event_time="at",
            schema={"at": int, "n": int},
            format=self.format,
            watch=True,
        )
        self.source.open(self.store)

    def rows(self, end: Any) -> list[int]:
        tasks = self.source.for_tasks()
        splits = self.source.splits(self.position, end)
        return [n for split in splits for n in tasks.read(split)["n"].to_pylist()]

    def drain(self) -> None:
        seen, self.seen = self.seen, set()
        for _ in range(200):
            limit = Limit(self.chance.choice([1, 2, 100]), self.chance.choice([50, 1 << 20]))
            offer = self.source.offer(self.position, limit)
            if offer is None:
                break
            end = json.loads(json.dumps(offer.end))
            fate = self.chance.randrange(6)
            if fate == 0:  # the step is lost before anything says what it was to read
                self.restart()
                continue
            rows = self.rows(end)
            if fate == 1:  # the step is known, and is run again by another process
                self.restart()
                assert self.rows(end) == rows
            self.writer.read.update(rows)
            self.position = end
            self.writer.cut.clear()  # (the position says by now where the content went)
            self.writer.twice -= seen
            self.writer.rotated = False
        else:
            raise AssertionError("the reader never came to rest")
        self.seen = {*self.writer.twice}  # (the next position says which of them are copies)
        assert max(self.writer.read.values(), default=1) == 1, "a record was read twice"
        missing = self.writer.there() - self.writer.read.keys()
        assert not missing, f"records were not read: {missing}"


def run(folder: Path, acts: list[str], seed: int) -> None:
    chance = random.Random(seed)
    writer = Writer(folder, chance)
    reader = Reader(folder, writer, chance)
    for act in acts:
        if act == "read":
            try:
                reader.drain()
            except (SourceChanged, BadInput):
                if not writer.destroyed:
                    raise
                return
        elif act == "crash":
            reader.restart()
        else:
            getattr(writer, act)()
    if not writer.destroyed:
        reader.restart()
        reader.drain()


steps = st.lists(st.sampled_from([*ACTS, "read", "read", "read", "read", "crash"]), max_size=40)


#: Two rotations beside a copy that is cut, when a catalog knows the log; once they were read twice.
ROTATED = [
    "create_packed",
    "read",
    "rotate",
    "rotate",
    "append",
    "append",
    "rotate",
    "write_again",
    "write_again",
    "copy_and_truncate",
    "rename",
    "read",
    "append",
    "rotate",
    "rotate",
    "read",
    "rotate",
    "read",
]
PACKED = [
    "rotate",
    "pack",
    "pack",
    "rotate",
    "create",
    "crash",
    "create",
    "publish",
    "read",
    "copy_and_truncate",
    "rotate",
    "read",
    "pack",
    "create",
    "append",
    "create",
    "pack",
    "append",
    "rotate",
]


@pytest.mark.parametrize("named", [1, 64], ids=["in catalogs", "by name"])
@given(acts=steps, seed=st.integers(0, 1 << 32))
@example(acts=ROTATED, seed=5)
@example(acts=PACKED, seed=4)
@settings(max_examples=80, deadline=None)
def test_each_record_is_read_once_whatever_becomes_of_the_files(
    named: int, acts: list[str], seed: int
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(known, "_NAMED_FILES", named)
        run(Path(folder), acts, seed)


@pytest.mark.soak
@pytest.mark.parametrize("named", [1, 2, 64])
@given(
    acts=st.lists(st.sampled_from([*ACTS, *["read"] * 5, "crash"]), min_size=30, max_size=200),
    seed=st.integers(0, 1 << 32),
)
@settings(max_examples=2000)
def test_each_record_is_read_once_in_long_runs(named: int, acts: list[str], seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(known, "_NAMED_FILES", named)
        run(Path(folder), acts, seed)


class ParquetWriter:
    """Writes whole Parquet files, also over others and without a trace in the directory's time."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder, self.chance = folder, chance
        self.rows: dict[str, set[int]] = {}
        self.read: Counter[int] = Counter()
        self.cut: set[str] = set()
        self.twice: set[str] = set()
        self.rotated = False
        self.next = 0

    def there(self) -> set[int]:
        return {n for rows in self.rows.values() for n in rows}

    def _put(self, name: str, *, in_place: bool) -> None:
        count = self.chance.randrange(4)
        rows = [*range(self.next, self.next + count)]
        self.next += count + 1
        path = self.folder / (name if in_place else "_new")
        table = pa.table({"at": pa.array(rows, "i8"), "n": pa.array(rows, "i8")})
        pyarrow.parquet.write_table(table, path)
        os.utime(path, ns=(self.next * 10**9, self.next * 10**9))  # (no two files in one tick)
        if not in_place:
            path.rename(self.folder / name)
        self.rows[name] = {*rows}

    def create(self) -> None:
        self._put(f"{self.chance.randrange(10**6):06d}.parquet", in_place=False)

    def _pick(self) -> str | None:
        return self.chance.choice(sorted(self.rows)) if self.rows else None

    def write_again(self) -> None:
        name = self._pick()
        if name is not None:
            self._put(name, in_place=bool(self.chance.randrange(2)))

    def rename(self) -> None:
        name, to = self._pick(), f"r{self.chance.randrange(10**6):06d}.parquet"
        if name is not None:
            (self.folder / name).rename(self.folder / to)
            self.rows[to] = self.rows.pop(name)

    def delete(self) -> None:
        name = self._pick()
        if name is not None:
            (self.folder / name).unlink()
            del self.rows[name]

    def put_time_back(self) -> None:
        os.utime(self.folder, (1_000_000, 1_000_000))


@pytest.mark.parametrize("named", [1, 64], ids=["in catalogs", "by name"])
@given(
    acts=st.lists(
        st.sampled_from(
            [
                "create",
                "create",
                "write_again",
                "write_again",
                "rename",
                "delete",
                "put_time_back",
                "read",
                "read",
                "read",
                "crash",
            ]
        ),
        max_size=30,
    ),
    seed=st.integers(0, 1 << 32),
)
@settings(max_examples=20, deadline=None)
def test_each_row_of_parquet_is_read_once_whatever_becomes_of_the_files(
    named: int, acts: list[str], seed: int
) -> None:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(known, "_NAMED_FILES", named)
        patch.setattr(folders, "_SETTLED_NS", 0)
        chance = random.Random(seed)
        writer = ParquetWriter(Path(name), chance)
        reader = Reader(Path(name), writer, chance, format="parquet")
        for act in [*acts, "read"]:
            if act == "read":
                reader.drain()
            elif act == "crash":
                reader.restart()
            else:
                getattr(writer, act)()
