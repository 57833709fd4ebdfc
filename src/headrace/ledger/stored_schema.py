"""The stored schema: everything about a pipeline that its durable data depends on.

The head holds it, and each start compares it with the schema that the code declares
(:mod:`headrace.pipeline.declared_schema`). Older versions did not store every part.
"""

from __future__ import annotations

from typing import Annotated, Any, Required, TypedDict

import msgspec

from headrace.keyspace.groups import MAX_GROUPS, Groups
from headrace.storage.bounds import LayerNumber, StepNumber


class StoredComputation(TypedDict, total=False):
    """A computation, which may have been removed since.

    Attributes:
        key: the types of its key's fields.
        cells: its state: name → kind and type, in words.
        shapes: the schema of its state, by name; see :mod:`headrace.schema.compatibility`.
        reads: the streams that it reads.
        watermark: which watermark it follows.
        group: the name of its group, if the pipeline has groups.
        removed: names of states that the code no longer declares, on purpose.
    """

    key: Required[list[str]]
    cells: Required[dict[str, str]]
    shapes: dict[str, dict[str, Any]]
    reads: list[str]
    watermark: str
    group: str | None
    removed: list[str]


class StoredView(TypedDict, total=False):
    """A view of SQL.

    Attributes:
        sql: its text.
        digest: identifies what it computes.
        plan: what was planned of it, so that a start need not plan again.
    """

    sql: Required[str]
    digest: Required[str]
    plan: Required[str]


class StoredSchema(TypedDict, total=False):
    """The stored schema of a pipeline.

    Attributes:
        computations: also those that were removed.
        injectors: the kind of each injector's source, and its watermark rules.
        streams: the columns of each stream.
        groups: their names, in order, if there are any.
        retained: for each retained stream, the step since which its productions are kept.
        removed: for each computation that was removed and whose state is kept, the step of the
            removal.
        void: for each computation whose state was given up, the step up to which files may hold
            its rows.
        views: the views of SQL, by name.
        sinks: the stream that each sink receives, for people. Older versions did not store it.
        layers: the layer in which each computation runs, likewise.
        targets: what each sink is, and where it writes to, without secrets, likewise.
    """

    computations: dict[str, StoredComputation]
    injectors: dict[str, dict[str, Any]]
    streams: dict[str, dict[str, Any]]
    groups: Annotated[list[str], msgspec.Meta(max_length=MAX_GROUPS)]
    retained: dict[str, StepNumber]
    removed: dict[str, StepNumber]
    void: dict[str, StepNumber]
    views: dict[str, StoredView]
    sinks: dict[str, str]
    layers: dict[str, LayerNumber]
    targets: dict[str, str]


class WithGroups(TypedDict, total=False):
    """A stored or declared schema, as far as its groups go."""

    groups: list[str]


def groups_of(schema: WithGroups) -> Groups:
    """Return the groups that a schema names."""
    return Groups(schema.get("groups", []))
