"""Ways to damage a store, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

import headrace as hr
from headrace.checkpoints.catalog import Checkpoints
from headrace.checkpoints.checkpoint import Checkpoint
from headrace.errors import Damaged, ListLags, NewerFormat, NotFound
from headrace.ledger.envelope import read_document
from headrace.ledger.manifest import manifest_name
from headrace.storage import MemoryStore
from tests.support.checkpointed import draw, driven, items

Files = dict[str, bytes]


class Refused(NamedTuple):
    """A typed error, instead of a result: what it says."""

    said: str


def small_world() -> Files:
    """Return the files of a small pipeline that has stopped, with unreleased and retained outputs."""
    store = MemoryStore()
    driven(store, steps=7, base_every=4, slices=2, retain_steps=4).close()
    return files_of(store)


def smallest_world() -> Files:
    """Return the files of one that has made two steps: few enough for every byte to be tried."""
    store = MemoryStore()
    driven(store, steps=2, base_every=2, slices=1, retain_steps=1).close()
    return files_of(store)


def files_of(store: MemoryStore) -> Files:
    found = {name: store.read(name) for name in store.list("")}
    return {name: data for name, data in found.items() if not name.startswith("measurements/")}


def store_of(files: Files) -> MemoryStore:
    store = MemoryStore()
    for name, data in files.items():
        store.write(name, data)
    return store


#: Where parts of a file begin and end; at the end of the file, whatever its length, if that is None.
Parts = list[tuple[int, int | None]]


def needed(files: Files) -> dict[str, Parts]:
    """Return what the newest checkpoint needs, by name: told by its head, and by where its base is."""
    checkpoint = Checkpoints(store_of(files)).open()
    base = max([0, *(at for at in checkpoint.head.bases if at <= checkpoint.step)])
    parts: dict[str, Parts] = {}
    for name in [manifest_name(at) for at in {0, *range(base, checkpoint.step + 1)}]:
        document = read_document(store_of(files), name)
        parts[name] = [(0, len(document) if len(document) < len(files[name]) else None)]
    for ref in checkpoint.files():
        end = None if ref.pack is None else ref.offset + ref.length
        parts.setdefault(ref.place, []).append((ref.offset, end))
    return parts


def is_hurt(parts: Parts, before: bytes, after: bytes | None) -> bool:
    """Return whether damage has changed one of some parts of a file."""
    return bool(parts) and (
        after is None or any(before[begin:end] != after[begin:end] for begin, end in parts)
    )


class Overtaken(MemoryStore):
    """From the n-th read on, what is there is what a driver has left that has gone on meanwhile."""

    def __init__(self, before: Files, after: Files, at: int) -> None:
        super().__init__()
        self._files = dict(before)
        self._after = after
        self.left = at

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        self.left -= 1
        if not self.left:
            self._files = dict(self._after)
        return super().read(name, offset, length)


def tried(do: Callable[[], Any]) -> Any:
    """Return what comes of something; a refusal where it is told that storage is damaged.

    Anything else goes through, also what user code would raise that was given damaged data.
    """
    try:
        return do()
    except (Damaged, NewerFormat, NotFound, ListLags) as error:
        return Refused(str(error))


def read_all(files: Files) -> Any:
    """Open the newest checkpoint and read all of it."""

    def read() -> Any:
        checkpoint: Checkpoint = Checkpoints(store_of(files)).open()
        return {
            (name, section): checkpoint.read(name, section)
            for name, of in checkpoint.components.items()
            for section in of.sections
        }

    return tried(read)


def run_on(files: Files) -> Any:
    """Run the pipeline on for some steps; return what sinks were given and what its state is then."""
    store = store_of(files)

    def run() -> Any:
        settings = hr.Settings(base_every=4, slices=2, retain_steps=2)
        with hr.testing.drive(draw(), storage=store, settings=settings, clock=2 * 10**15 - 1) as t:
            for first in (600, 900, 1500):
                t.push_many("items", items(first, 5))
                assert t.step() is not None
            given = {
                name: [msgspec.to_builtins(o, enc_hook=repr) for o in t.outputs(name)]
                for name in ("cells", "tables", "ordered")
            }
            state = {key: t.state("cells", key) for key in t.keys("cells")}
            rows = {key: t.state("tables", key) for key in t.keys("tables")}
            return given, state, rows

    return tried(run)


def flipped(files: Files, name: str, position: int) -> Files:
    """Return the files with one bit of one byte flipped."""
    data = bytearray(files[name])
    data[position] ^= 1 << (position % 8)
    return {**files, name: bytes(data)}


def truncated(files: Files, name: str, length: int) -> Files:
    return {**files, name: files[name][:length]}


def swapped(files: Files, one: str, other: str) -> Files:
    return {**files, one: files[other], other: files[one]}


def without(files: Files, name: str) -> Files:
    return {n: data for n, data in files.items() if n != name}
