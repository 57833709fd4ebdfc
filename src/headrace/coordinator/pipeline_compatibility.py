"""Compares the schema that a pipeline declares with the stored one, and merges the two."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from headrace.coordinator.inputs import source_problems
from headrace.coordinator.state_compatibility import (
    dropped_states,
    merged_shapes,
    problems_of,
    removed_states,
    undeclared_shapes,
)
from headrace.errors import SchemaChanged
from headrace.errors.printable import one_line
from headrace.ledger.head import Head
from headrace.ledger.stored_schema import (
    StoredComputation,
    StoredSchema,
    StoredView,
    groups_of,
)
from headrace.pipeline.declared_schema import DeclaredComputation, DeclaredSchema


def merged_schema(
    stored: StoredSchema,
    wanted: DeclaredSchema,
    *,
    step: int = 0,
    removed: Collection[str] = (),
    forgotten: Collection[str] = (),
    floor: int = -1,
) -> StoredSchema:
    """Return the schema to store: new parts are added, and stored cells are kept.

    Args:
        stored: the stored schema, checked against ``wanted``.
        wanted: the declared schema of the graph that is to run.
        step: the step of the claim with which it starts.
        removed: computations that were removed on purpose.
        forgotten: computations whose state is given up.
        floor: files of changes up to this step are no longer needed.
    """
    computations = {
        name: facts
        for name, facts in stored.get("computations", {}).items()
        if name not in forgotten
    }
    for name, before in computations.items():
        if name not in wanted["computations"]:
            computations[name] = {**before, "shapes": undeclared_shapes(before)}
    for name, facts in wanted["computations"].items():
        computations[name] = _merged(computations.get(name), facts, step=step, floor=floor)
    since = stored.get("removed", {})
    declared = wanted["computations"]
    gone = {name: since.get(name, step) for name in sorted(removed) if name not in declared}
    void = {name: at for name, at in stored.get("void", {}).items() if at > floor}
    void.update(dict.fromkeys(forgotten, step))
    kept = stored.get("retained", {})
    retained = {name: kept.get(name, step) for name in wanted["retained"]}
    merged: StoredSchema = {
        "computations": computations,
        "injectors": wanted["injectors"],
        "streams": wanted["streams"],
        "retained": retained,
    }
    if "groups" in wanted:
        merged["groups"] = wanted["groups"]
    if views := wanted.get("views"):
        merged["views"] = {name: StoredView(**view) for name, view in views.items()}
    if gone:
        merged["removed"] = gone
    if void:
        merged["void"] = void
    if "sinks" in stored:
        merged["sinks"] = stored["sinks"]
    if "targets" in stored:
        merged["targets"] = stored["targets"]
    if "layers" in stored:
        merged["layers"] = stored["layers"]
    return merged


def with_graph(
    schema: StoredSchema, sinks: dict[str, str], layers: dict[str, int], targets: dict[str, str]
) -> StoredSchema:
    """Return a schema to store with what people want to see of the graph. Nothing depends on it.

    Args:
        schema: what durable data depends on.
        sinks: the stream of each sink.
        layers: the layer of each computation.
        targets: what each sink is, and where it writes to.
    """
    return {**schema, "sinks": sinks, "layers": layers, "targets": targets}


def _merged(
    before: StoredComputation | None, facts: DeclaredComputation, *, step: int, floor: int
) -> StoredComputation:
    """Return what to store of a computation."""
    before = {"key": facts["key"], "cells": {}} if before is None else before
    merged: StoredComputation = {
        "key": facts["key"],
        "cells": {**before["cells"], **facts["cells"]},
        "shapes": merged_shapes(before, facts, step=step, floor=floor),
        "reads": facts["reads"],
        "watermark": facts["watermark"],
    }
    if "group" in facts:
        merged["group"] = facts["group"]
    if unused := removed_states(before, facts):
        merged["removed"] = unused
    return merged


def as_noted(schema: StoredSchema, stored: StoredSchema) -> StoredSchema:
    """Return a schema without shapes and kinds of sources that older versions did not store."""
    noted, known = stored.get("computations", {}), stored.get("injectors", {})
    computations = schema["computations"].copy()
    for name, facts in computations.items():
        if "shapes" not in noted.get(name, {}):
            computations[name] = facts.copy()
            computations[name].pop("shapes", None)
    injectors = {
        name: {
            key: fact
            for key, fact in facts.items()
            if key != "source" or key in known.get(name, {})
        }
        for name, facts in schema["injectors"].items()
    }
    return {**schema, "computations": computations, "injectors": injectors}


def removed_of(head: Head | None) -> dict[str, int]:
    """Return the step of removal of each computation that was removed with its state kept."""
    found: dict[str, int] = {} if head is None else head.stored_schema.get("removed", {})
    return found


def missed_since(head: Head | None) -> list[str]:
    """Return the removed computations that have missed a step."""
    return [] if head is None else [n for n, since in removed_of(head).items() if since < head.step]


def flows_otherwise(stored: StoredSchema, wanted: DeclaredSchema) -> bool:
    """Return whether watermarks may move although no record comes.

    They may if a computation is new, or if its inputs or its watermark rules are others. If they
    moved only with the next step, which records are late would depend on when that step happens.

    Args:
        stored: the stored schema.
        wanted: the declared schema of the graph that is to run.
    """
    known = stored.get("computations", {})
    if stored.get("injectors", {}) != wanted.get("injectors", {}):
        return True
    return any(
        name not in known
        or any(known[name].get(which) != facts.get(which) for which in ("reads", "watermark"))
        for name, facts in wanted["computations"].items()
    )


def check_schema(
    stored: StoredSchema,
    wanted: DeclaredSchema,
    *,
    removed: Collection[str] = (),
    forgotten: Collection[str] = (),
) -> None:
    """Check that this pipeline can read the durable state.

    Args:
        stored: the stored schema.
        wanted: the declared schema of the graph that is to run.
        removed: computations that were removed on purpose.
        forgotten: computations whose state is given up, so that anything about it may change.

    Raises:
        SchemaChanged: naming every difference.
    """
    problems = _groups_problems(stored, wanted)
    remedies = ["name the groups that were stored, in their order"] if problems else []
    for problem, remedy in source_problems(stored, wanted):
        problems.append(problem)
        remedies.append(remedy)
    for problem, remedy in _changed_views(stored, wanted):
        problems.append(problem)
        remedies.append(remedy)
    for name, before in stored.get("computations", {}).items():
        now = wanted["computations"].get(name)
        if name in forgotten or (now is None and name in removed):
            continue
        if now is None:
            problems.append(f"computation {name!r} is gone, and its state would be lost")
            remedies.append(
                f"if that is meant, say so: headrace remove {name} --storage … (its state is kept, or "
                "given up with --forget)"
            )
            continue
        moved = _group_problems(stored, wanted, name)
        if now["key"] != before["key"]:
            moved.append(f"computation {name!r}: key {before['key']} became {now['key']}")
        remedies += ["use the names and keys that were stored"] if moved else []
        found = list(problems_of(name, before, now))
        problems += [*moved, *(problem.what for problem in found)]
        remedies += [problem.remedy for problem in found]
    if problems:
        remedies.append("or start with a new storage directory")
        raise SchemaChanged(
            "the state in storage has another shape than this pipeline:\n    "
            + "\n    ".join(problems),
            remedy="; ".join(dict.fromkeys(remedies)),
        )


def dropped(stored: StoredSchema, wanted: DeclaredSchema) -> Iterator[str]:
    """Yield what a start says of each state that its code has dropped without a word.

    Args:
        stored: the stored schema.
        wanted: the declared schema of the graph that starts.
    """
    for name, before in stored.get("computations", {}).items():
        if now := wanted["computations"].get(name):
            for cell, described in dropped_states(before, now).items():
                yield (
                    f"computation {name!r} no longer declares state {cell!r} ({described}): what is "
                    "stored is kept, and not read; it is found again if init() declares it again. "
                    f"handle.deleteIfExists({cell!r}) in init() says that it is meant"
                )


def _changed_views(stored: StoredSchema, wanted: DeclaredSchema) -> Iterator[tuple[str, str]]:
    """Yield each view that computes something else than before, with the remedy.

    What reads it has kept the rows of the old one.
    """
    now = wanted.get("views", {})
    for name, view in stored.get("views", {}).items():
        if name in now and now[name]["digest"] != view["digest"]:
            yield (
                f"view {name!r} has another query: {one_line(view['sql'])} became "
                f"{one_line(now[name]['sql'])}",
                f"give the new query another name than {name!r}, and remove the old view",
            )


def _groups_problems(stored: StoredSchema, wanted: DeclaredSchema) -> list[str]:
    """Return why keys would get other hashes: groups were removed, reordered, or need more bits."""
    before, now = groups_of(stored), groups_of(wanted)
    names = ", ".join(before.names) or "none"
    if not stored or (now.bits == before.bits and now.names[: len(before.names)] == before.names):
        return []
    room = (1 << before.bits) - len(before)
    may = f"up to {room} may be added behind them" if room else "there is no room for another"
    return [f"the groups were {names}, are {', '.join(now.names) or 'none'}; {may}"]


def _group_problems(stored: StoredSchema, wanted: DeclaredSchema, name: str) -> list[str]:
    """Return why a computation cannot be in its group: its stored state lies in another group."""
    facts, now = (of["computations"][name] for of in (stored, wanted))
    was, is_ = facts.get("group"), now.get("group")
    same = groups_of(stored).group(was).number == groups_of(wanted).group(is_).number
    kept = facts["cells"] or any(of.partition(".")[0] == name for of in stored.get("retained", ()))
    if same or not kept:
        return []
    return [
        f"computation {name!r}: group {was!r} became {is_!r}, and what is kept of it would stay"
    ]
