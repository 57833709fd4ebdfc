"""The facts about a graph that stored data depends on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from headrace.keyspace.groups import Groups
from headrace.pipeline.nodes import Injector, Node
from headrace.pipeline.state_schemas import older_shapes, state_shapes
from headrace.pipeline.streams import Stream
from headrace.schema import describe


def identity_of(
    injectors: Mapping[str, Injector],
    nodes: Mapping[str, Node],
    streams: Mapping[str, Stream],
    retained: Collection[str],
) -> dict[str, Any]:
    """Return these facts as plain data, as they are stored."""
    return {
        "computations": {
            node.name: {
                "key": [str(field.type) for field in node.key_fields],
                "cells": node.state_types(),
                "shapes": state_shapes(node),
                **_reads(node),
                "reads": [stream.name for stream in node.inputs],
                "watermark": "percentile" if node.by_percentile else "low",
            }
            for node in nodes.values()
        },
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


def _reads(node: Node) -> dict[str, Any]:
    """Return how the code takes what is stored. This is compared, and not stored."""
    found = {
        "upgrades": older_shapes(node),
        "attributes": node.declarations.attributes,
        "removed": node.declarations.removed,
    }
    return {name: of for name, of in found.items() if of}


def with_groups(
    identity: dict[str, Any], groups: Groups, nodes: Mapping[str, Node]
) -> dict[str, Any]:
    """Return the facts with the groups, and the group of each computation.

    They stay as they are if no groups are named.
    """
    if not groups.names:
        return identity
    computations = {
        name: {**facts, "group": groups.names[nodes[name].group.number]}
        for name, facts in identity["computations"].items()
    }
    return {**identity, "computations": computations, "groups": list(groups.names)}
