"""The schemas of a computation's state as they are stored, and those of older versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.computation.declarations import Lasting
from headrace.computation.inspection import by_stored_name
from headrace.computation.record_ids import IDS
from headrace.pipeline.nodes import Node
from headrace.pipeline.streams import Stream
from headrace.schema import defaults_of, describe
from headrace.schema.codecs import StateCodec
from headrace.schema.upgrades import Upgrade

#: How the code reads rows of an older version: as plain data of any kind, or not at all.
ANYTHING, GIVEN_UP = "anything", "given up"


def state_shapes(node: Node) -> dict[str, dict[str, Any]]:
    """Return name in storage → schema of all state of a computation that has values.

    See :mod:`headrace.schema.compatibility`.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, item in _with_values(node).items():
        if item.kind == IDS:
            continue
        if item.kind == "table":
            shape = item.shape(place=node.name)
        else:
            shape = StateCodec(item.type, item.codec, place=node.name).shape()
        if item.kind == "map":
            shape["keys"] = StateCodec(item.key_type, None, place=node.name).shape()["type"]
        ttl = item.ttl_shape() if isinstance(item, Lasting) else {}
        written = {"written": item.written} if item.written else {}
        found[name] = {"kind": item.kind, **shape, **ttl, **_version(item.version), **written}
    for name, stream in node.posts.items():
        found[node.stored_name(name)] = {"kind": "posted", **_columns(stream)}
    if node.ordered:
        for stream in node.inputs:
            found[f"{stream.name} in order"] = {"kind": "waiting", **_columns(stream)}
    # As it will be read back: JSON turns a NaN into null.
    plain: dict[str, dict[str, Any]] = msgspec.json.decode(msgspec.json.encode(found))
    return plain


def older_shapes(node: Node) -> dict[str, dict[str, Any]]:
    """Return name in storage → older version → the schema with which the code reads rows of that version.

    Only states with upgrades are included.
    """
    found = {
        name: {str(older): _taken_as(item.kind, of, node) for older, of in item.upgrades.items()}
        for name, item in _with_values(node).items()
    }
    return {name: older for name, older in found.items() if older}


def _with_values(node: Node) -> dict[str, Any]:
    return by_stored_name({**node.declarations.states, **node.declarations.per_worker})


def _taken_as(kind: str, upgrade: Upgrade, node: Node) -> Any:
    if upgrade.convert is None:
        return GIVEN_UP
    if upgrade.reads is None:
        return ANYTHING
    if kind == "table":
        reads = upgrade.reads
        return {**reads.shape(place=node.name), "described": reads.describe(place=node.name)}
    codec = upgrade.state_codec(node.name)
    return {**codec.shape(), "described": codec.describe()}


def _version(version: int) -> Mapping[str, int]:
    return {"version": version} if version > 1 else {}


def _columns(stream: Stream) -> dict[str, Any]:
    """Return the columns of waiting records, with the defaults of columns that were added."""
    defaults = defaults_of(stream.values)
    return {
        "columns": {
            name: {"type": kind, **({"default": defaults[name]} if name in defaults else {})}
            for name, kind in describe(stream.values.schema).items()
        }
    }
