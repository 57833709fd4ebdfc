"""The identity of a pipeline: everything that its durable data depends on.

It is plain data in the head, with these parts:

* ``computations``: also those that were removed. Each has the ``shapes`` of its state; see
  :mod:`headrace.coordinator.state_compatibility`. ``removed`` names states that the code no longer
  declares, on purpose.
* ``injectors`` and ``streams``.
* ``retained``: for each retained stream, the step since which its productions are kept.
* ``groups``: their names, in order, if there are any. Each computation then names its own.
* ``removed``: for each computation that was removed and whose state is kept, the step of the
  removal.
* ``void``: for each computation whose state was given up, the step up to which files may hold its
  rows.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from headrace.coordinator.inputs import source_problems
from headrace.coordinator.state_compatibility import (
    merged_shapes,
    problems_of,
    removed_states,
    undeclared_shapes,
)
from headrace.errors import SchemaChanged
from headrace.keyspace.groups import Groups
from headrace.ledger.head import Head

Identity = dict[str, Any]

#: What code says of its state that is compared with the stored identity, and not stored as it is.
_NOT_STORED = ("upgrades", "attributes", "removed")


def merged_identity(
    stored: Identity,
    wanted: Identity,
    *,
    step: int = 0,
    removed: Collection[str] = (),
    forgotten: Collection[str] = (),
    floor: int = -1,
) -> Identity:
    """Return the identity to store: new parts are added, and stored cells are kept.

    Args:
        stored: the stored identity, checked against ``wanted``.
        wanted: the identity of the graph that is to run.
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
    for name, facts in computations.items():
        if name not in wanted["computations"]:
            computations[name] = {**facts, "shapes": undeclared_shapes(facts)}
    for name, facts in wanted["computations"].items():
        before = computations.get(name, {"cells": {}})
        unused = removed_states(before, facts)
        computations[name] = {
            **{key: fact for key, fact in facts.items() if key not in _NOT_STORED},
            "cells": {**before["cells"], **facts["cells"]},
            "shapes": merged_shapes(before, facts, step=step, floor=floor),
            **({"removed": unused} if unused else {}),
        }
    since = stored.get("removed", {})
    declared = wanted["computations"]
    gone = {name: since.get(name, step) for name in sorted(removed) if name not in declared}
    void = {name: at for name, at in stored.get("void", {}).items() if at > floor}
    void.update(dict.fromkeys(forgotten, step))
    kept = stored.get("retained", {})
    retained = {name: kept.get(name, step) for name in wanted.get("retained", [])}
    return {
        **wanted,
        "computations": computations,
        "retained": retained,
        **({"removed": gone} if gone else {}),
        **({"void": void} if void else {}),
    }


def as_noted(identity: Identity, stored: Identity) -> Identity:
    """Return an identity without shapes and kinds of sources that older versions did not store."""
    noted = stored.get("computations", {})
    computations = {
        name: {
            key: fact
            for key, fact in facts.items()
            if key != "shapes" or "shapes" in noted.get(name, {})
        }
        for name, facts in identity["computations"].items()
    }
    known = stored.get("injectors", {})
    injectors = {
        name: {
            key: fact
            for key, fact in facts.items()
            if key != "source" or key in known.get(name, {})
        }
        for name, facts in identity["injectors"].items()
    }
    return {**identity, "computations": computations, "injectors": injectors}


def groups_of(identity: Identity) -> Groups:
    """Return the groups in an identity."""
    return Groups(identity.get("groups", []))


def removed_of(head: Head | None) -> dict[str, int]:
    """Return the step of removal of each computation that was removed with its state kept."""
    found: dict[str, int] = {} if head is None else head.identity.get("removed", {})
    return found


def flows_otherwise(stored: Identity, wanted: Identity) -> bool:
    """Return whether watermarks may move although no record comes.

    They may if a computation is new, or if its inputs or its watermark rules are others. If they
    moved only with the next step, which records are late would depend on when that step happens.

    Args:
        stored: the stored identity.
        wanted: the identity of the graph that is to run.
    """
    known = stored.get("computations", {})
    if stored.get("injectors", {}) != wanted.get("injectors", {}):
        return True
    return any(
        name not in known
        or any(known[name].get(which) != facts.get(which) for which in ("reads", "watermark"))
        for name, facts in wanted["computations"].items()
    )


def check_identity(
    stored: Identity,
    wanted: Identity,
    *,
    removed: Collection[str] = (),
    forgotten: Collection[str] = (),
) -> None:
    """Check that this pipeline can read the durable state.

    Args:
        stored: the stored identity.
        wanted: the identity of the graph that is to run.
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


def _groups_problems(stored: Identity, wanted: Identity) -> list[str]:
    """Return why keys would get other hashes: groups were removed, reordered, or need more bits."""
    before, now = groups_of(stored), groups_of(wanted)
    names = ", ".join(before.names) or "none"
    if not stored or (now.bits == before.bits and now.names[: len(before.names)] == before.names):
        return []
    room = (1 << before.bits) - len(before)
    may = f"up to {room} may be added behind them" if room else "there is no room for another"
    return [f"the groups were {names}, are {', '.join(now.names) or 'none'}; {may}"]


def _group_problems(stored: Identity, wanted: Identity, name: str) -> list[str]:
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
