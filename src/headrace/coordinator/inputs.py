"""Checks that no injector is lost or changes its kind of source between two runs, unnoticed."""

from __future__ import annotations

from collections.abc import Collection

from headrace.errors import PipelineError
from headrace.ledger.head import Head
from headrace.ledger.stored_schema import StoredSchema
from headrace.pipeline.declared_schema import DeclaredSchema


def check_injectors_are_there(
    head: Head,
    wanted: DeclaredSchema,
    *,
    forgotten: Collection[str] = (),
    given_up: Collection[str] = (),
) -> None:
    """Check that each computation that goes on still reads the injectors that it read.

    If an injector got another name, its reader would read everything again, and count it twice.

    Args:
        head: the committed state.
        wanted: the declared schema of the graph that is to run.
        forgotten: computations whose state is given up.
        given_up: injectors that were removed on purpose.

    Raises:
        PipelineError: naming an injector that is gone, and those that it may have become.
    """
    declared, known = wanted["injectors"], head.stored_schema.get("injectors", {})
    gone = {name for name in known if name not in declared and name in head.positions} - {*given_up}
    for computation, facts in head.stored_schema.get("computations", {}).items():
        if computation not in wanted["computations"] or computation in forgotten:
            continue
        for name in facts.get("reads", ()):
            if name in gone:
                raise _is_gone(name, computation, [new for new in declared if new not in known])


def _is_gone(name: str, computation: str, new: list[str]) -> PipelineError:
    renamed = f" (is it {' or '.join(map(repr, new))} now?)" if new else ""
    return PipelineError(
        f"injector {name!r}, which {computation!r} has read, is gone{renamed}: what it had still to "
        "bring would be missing, and under another name all of it would be read again",
        place=f"computation {computation!r}",
        remedy=f"build the injector as {name!r} again; or, if {computation!r} is to go on without it, "
        f"say so: headrace.run(..., remove_injectors=[{name!r}]), or headrace run --remove-injector "
        f"{name}",
    )


def source_problems(stored: StoredSchema, wanted: DeclaredSchema) -> list[tuple[str, str]]:
    """Return which injectors have another kind of source now, each with a remedy.

    A position in one kind of source means nothing to another.
    """
    before, now = stored.get("injectors", {}), wanted.get("injectors", {})
    kinds = {
        name: (before[name].get("source"), now[name].get("source"))
        for name in before
        if name in now
    }
    return [
        (
            f"injector {name!r}: it was read from {was}, and is {is_} now",
            f"give the new source's injector another name than {name!r}",
        )
        for name, (was, is_) in kinds.items()
        if was and is_ and was != is_
    ]
