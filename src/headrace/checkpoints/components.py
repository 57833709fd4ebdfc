"""Components: the computations of a checkpoint, described without their code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date, datetime
from typing import Any

import msgspec
import pyarrow as pa

from headrace.computation.declarations import PER_WORKER
from headrace.computation.record_ids import IDS
from headrace.errors import Damaged, PipelineError
from headrace.eventtime.timestamps import to_micros
from headrace.keyspace.groups import Group, Groups
from headrace.keyspace.hashing import hash_key
from headrace.ledger.head import Head
from headrace.ledger.records import Counts
from headrace.runfiles.sections import (
    CELLS,
    post_section,
    table_section,
    timer_section,
    waiting_section,
)

#: The section with the timers of a per-record computation, which are stored among its cells; and
#: the section with per-worker values.
TIMERS = "timers"
WORKERS = "workers"

_IN_ORDER = " in order"
_ZONED = re.compile(r"timestamp\[(s|ms|us|ns), tz=([^\]]+)\]")


class Component(msgspec.Struct, frozen=True):
    """A computation in a checkpoint.

    Attributes:
        name: the computation; ``INJECTOR.ids`` for the deduplication of an injector's record ids.
        parallelism: how many workers it had.
        key: the Arrow types of its key's parts.
        state: its declared states: name → type, in the form that storage keeps to recognise
            changes.
        sections: the sections that can be read.
        group: the group with which its state moves; None where no groups are named.
        input_watermark, output_watermark: in microseconds since 1970 UTC.
        counts: what it has done so far.
        removed: the step since which it is removed from the pipeline, with its state kept; None if
            it is part of the pipeline.
        place: the part of the hash space in which its keys lie.
        expiring: whether some of its per-record state has a time to live.
    """

    name: str
    parallelism: int
    key: list[str]
    state: dict[str, str]
    sections: list[str]
    group: str | None
    input_watermark: int
    output_watermark: int
    counts: Counts
    removed: int | None
    place: Group
    expiring: bool = False

    @property
    def key_names(self) -> list[str]:
        """The columns of the key: ``key``, or ``key0``, ``key1``, … for a tuple."""
        return ["key"] if len(self.key) == 1 else [f"key{i}" for i in range(len(self.key))]

    @property
    def key_types(self) -> list[pa.DataType]:
        """The types of the key's parts."""
        return [arrow_type(text) for text in self.key]

    def hash_of(self, key: Any) -> int:
        """Return the hash of a key, within the computation's group.

        Args:
            key: as ``ctx.key`` would be: a value, or a tuple of the parts.

        Raises:
            PipelineError: when it cannot be a key of this computation.
        """
        parts = key if isinstance(key, tuple) else (key,)
        if len(parts) != len(self.key):
            raise PipelineError(
                f"{key!r} has {len(parts)} parts; a key of {self.name!r} has {len(self.key)}",
                remedy=f"its types are: {', '.join(self.key)}",
            )
        for part, kind in zip(parts, self.key_types, strict=True):
            _check_part(part, kind, self.name)
        try:
            return self.place.place(hash_key(parts if len(parts) > 1 else parts[0]))
        except (TypeError, ValueError, OverflowError) as error:
            raise PipelineError(f"{key!r} is not a key of {self.name!r}: {error}") from error

    def parse_key(self, texts: list[str]) -> Any:
        """Return the key given by texts, one for each part.

        Numbers are decimal, bytes hexadecimal, dates and times ISO 8601, booleans true and false.

        Raises:
            PipelineError: when the texts do not make a key of this computation.
        """
        if len(texts) != len(self.key):
            raise PipelineError(
                f"a key of {self.name!r} has {len(self.key)} parts, not {len(texts)}",
                remedy=f"give one argument for each: {', '.join(self.key)}",
            )
        parts = [_parsed(t, kind, self.name) for t, kind in zip(texts, self.key_types, strict=True)]
        return parts[0] if len(parts) == 1 else tuple(parts)

    def section(self, name: str | None) -> str:
        """Return a section by its name. Without a name, return the only one that holds state.

        Raises:
            PipelineError: when there is no section of that name, or the name is needed.
        """
        remedy = f"it has: {', '.join(self.sections) or 'none'}"
        if name is not None:
            if name not in self.sections:
                raise PipelineError(
                    f"computation {self.name!r} has no section {name!r}", remedy=remedy
                )
            return name
        holding = [s for s in self.sections if s in (CELLS, IDS) or s.startswith(table_section(""))]
        if len(holding) != 1:
            raise PipelineError(
                f"which section of {self.name!r} is wanted, must be said", remedy=remedy
            )
        return holding[0]


#: The kinds of state whose rows are cells of a key.
_CELL_KINDS = ("value", "list", "map")


def components_of(head: Head) -> dict[str, Component]:
    """Return the computations as of a step, by name. Removed ones with kept state are included."""
    groups = Groups(head.stored_schema.get("groups", []))
    removed = head.stored_schema.get("removed", {})
    found = {}
    for name, facts in sorted(head.stored_schema.get("computations", {}).items()):
        before, after = head.watermark_of(name)
        found[name] = Component(
            name=name,
            parallelism=head.layout.workers,
            key=facts["key"],
            state=facts["cells"],
            sections=list(dict.fromkeys(_sections(facts["cells"]))),
            group=facts.get("group"),
            input_watermark=before,
            output_watermark=after,
            counts=head.counts.get(name, Counts()),
            removed=removed.get(name),
            place=groups.group(facts.get("group")),
            expiring=any(
                "ttl" in shape and shape.get("kind") in _CELL_KINDS
                for shape in facts.get("shapes", {}).values()
            ),
        )
    return found


def _sections(cells: dict[str, str]) -> Iterator[str]:
    """Yield the sections that a computation with these states can have."""
    for name, described in cells.items():
        kind = described.partition(" ")[0]
        if described.startswith(PER_WORKER):
            yield WORKERS
        elif kind in _CELL_KINDS:
            yield CELLS
        elif kind == "table":
            yield table_section(name)
        elif kind == "timer":
            yield timer_section(name) if described.endswith(" in bulk") else TIMERS
        elif kind == "posted":
            yield post_section(name)
        elif kind == "waiting":
            yield waiting_section(name.removesuffix(_IN_ORDER))
        elif kind == IDS:
            yield IDS


def arrow_type(text: str) -> pa.DataType:
    """Return the type of a part of a key, by its name.

    >>> arrow_type("timestamp[us, tz=UTC]") == pa.timestamp("us", tz="UTC")
    True

    Raises:
        Damaged: when no type has that name.
    """
    zoned = _ZONED.fullmatch(text)
    try:
        return pa.timestamp(zoned[1], tz=zoned[2]) if zoned else pa.type_for_alias(text)
    except ValueError:
        raise Damaged(
            f"{text[:80]!a} is not a type of a key",
            remedy="restore the manifests from one copy of the storage",
        ) from None


def _check_part(part: Any, kind: pa.DataType, name: str) -> None:
    """Refuse a part of a key that Arrow would not accept, or would hash as another type."""
    try:
        scalar = pa.scalar(part, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError) as error:
        raise PipelineError(f"{part!r} is not a key of {name!r}: {error}") from error
    if not scalar.is_valid:
        raise PipelineError(f"a key of {name!r} cannot be None")
    if isinstance(part, float):
        raise PipelineError(f"{part!r} is not a key of {name!r}, which is {kind}")


def _parsed(text: str, kind: pa.DataType, name: str) -> Any:
    try:
        if pa.types.is_boolean(kind):
            return {"true": True, "false": False}[text.lower()]
        if pa.types.is_integer(kind):
            return int(text)
        if pa.types.is_binary(kind):
            return bytes.fromhex(text)
        if pa.types.is_date32(kind):
            return date.fromisoformat(text)
        if pa.types.is_timestamp(kind):
            moment = datetime.fromisoformat(text)
            to_micros(moment)
            return moment
    except (KeyError, ValueError) as error:
        raise PipelineError(
            f"{text!r} is not of type {kind}, as a key of {name!r} is: {error}"
        ) from error
    return text
