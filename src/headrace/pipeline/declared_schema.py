"""The declared schema: the facts about a graph that stored data depends on.

The storage keeps them (:mod:`headrace.ledger.stored_schema`), and each start compares the two.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NotRequired, TypedDict

from headrace.keyspace.groups import Groups
from headrace.pipeline.nodes import Injector, Node
from headrace.pipeline.state_schemas import older_shapes, state_shapes
from headrace.pipeline.streams import Stream
from headrace.schema import describe


class DeclaredComputation(TypedDict):
    """A computation, as code declares it. From ``upgrades`` on, they are compared, and not stored.

    Attributes:
        key: the types of its key's fields.
        cells: its state: name → kind and type, in words.
        shapes: the schema of its state, by name; see :mod:`headrace.schema.compatibility`.
        reads: the streams that it reads.
        watermark: which watermark it follows.
        group: the name of its group, if the pipeline has groups.
        upgrades: the schemas with which it reads older versions of its state, by name and version.
        attributes: the attributes that have other names than their stored states.
        removed: names of states that it no longer declares, on purpose.
        drops: whether all states that it no longer declares count as removed.
        remedies: what to do about changed ``state`` and ``timers``, if its code has words of its own.
    """

    key: list[str]
    cells: dict[str, str]
    shapes: dict[str, dict[str, Any]]
    reads: list[str]
    watermark: str
    group: NotRequired[str]
    upgrades: NotRequired[dict[str, dict[str, Any]]]
    attributes: NotRequired[dict[str, str]]
    removed: NotRequired[Collection[str]]
    drops: NotRequired[bool]
    remedies: NotRequired[dict[str, str]]


class DeclaredView(TypedDict):
    """A view of SQL, as code declares it.

    Attributes:
        sql: its text.
        digest: identifies what it computes.
        plan: what was planned of it, in the form of :mod:`headrace.sql.stored`.
    """

    sql: str
    digest: str
    plan: str


class DeclaredSchema(TypedDict):
    """The schema of a pipeline, as code declares it.

    Attributes:
        computations: by name.
        injectors: the kind of each injector's source, and its watermark rules.
        streams: the columns of each stream.
        retained: the names of the retained streams.
        groups: their names, in order, if there are any.
        views: the views of SQL, by name, if there are any.
    """

    computations: dict[str, DeclaredComputation]
    injectors: dict[str, dict[str, Any]]
    streams: dict[str, dict[str, Any]]
    retained: list[str]
    groups: NotRequired[list[str]]
    views: NotRequired[dict[str, DeclaredView]]


def schema_of(
    injectors: Mapping[str, Injector],
    nodes: Mapping[str, Node],
    streams: Mapping[str, Stream],
    retained: Collection[str],
) -> DeclaredSchema:
    """Return these facts as plain data."""
    return {
        "computations": {node.name: _computation(node) for node in nodes.values()},
        "injectors": {
            name: {
                **({"source": injector.source.source_kind} if injector.source.source_kind else {}),
                "watermark": str(injector.rules.strategy),
                "measures": injector.rules.strategy.measures,
                "expect": list(injector.rules.expect),
                "idle_after_us": injector.rules.idle_after_us,
                "skew_us": injector.rules.skew_us,
                "percentile": injector.rules.percentile,
            }
            for name, injector in injectors.items()
        },
        "streams": {name: describe(stream.values.schema) for name, stream in streams.items()},
        "retained": sorted(retained),
    }


def _computation(node: Node) -> DeclaredComputation:
    facts: DeclaredComputation = {
        "key": [str(field.type) for field in node.key_fields],
        "cells": node.state_types(),
        "shapes": state_shapes(node),
        "reads": list(dict.fromkeys(stream.name for stream in node.inputs)),
        "watermark": "percentile" if node.by_percentile else "low",
    }
    if upgrades := older_shapes(node):
        facts["upgrades"] = upgrades
    if node.declarations.attributes:
        facts["attributes"] = node.declarations.attributes
    if node.declarations.removed:
        facts["removed"] = node.declarations.removed
    code = node.computation
    if code.drops_state:
        facts["drops"] = True
    if code.changed_state:
        facts["remedies"] = {"state": code.changed_state, "timers": code.changed_timers}
    return facts


def with_groups(
    schema: DeclaredSchema, groups: Groups, nodes: Mapping[str, Node]
) -> DeclaredSchema:
    """Return the facts with the groups, and the group of each computation.

    They stay as they are if no groups are named.
    """
    if not groups.names:
        return schema
    computations: dict[str, DeclaredComputation] = {
        name: {**facts, "group": groups.names[nodes[name].group.number]}
        for name, facts in schema["computations"].items()
    }
    return {**schema, "computations": computations, "groups": list(groups.names)}
