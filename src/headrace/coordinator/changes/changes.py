"""Topology changes and commands, as decisions: what they lead to, or why they are refused.

A topology change is a claim. After the running step the driver starts over with another graph, in
the same process and on the same storage. What a change does to state, watermarks and soft state is
what a restart with that graph would do. So a pipeline starts in one way only, the same as after a
crash.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec

from headrace.coordinator.changes.beginnings import beginnings, not_yet, nothing_to_begin_with
from headrace.coordinator.changes.scheduled_stops import NOT_RUNNING, scheduled_stop_of
from headrace.coordinator.migrations.drained_hosts import drained_after
from headrace.coordinator.migrations.layout_state import LayoutState
from headrace.coordinator.migrations.steering import Bounds
from headrace.coordinator.migrations.steering import decide as steer
from headrace.coordinator.migrations.step_times import RecentStepTimes
from headrace.coordinator.pipeline_compatibility import check_schema
from headrace.coordinator.refused import Refused
from headrace.coordinator.state_compatibility import changes_of
from headrace.errors import PipelineError
from headrace.ledger.commands import MOVING, Answer, Command, CommandRequest
from headrace.ledger.places import Places
from headrace.ledger.records import Backfill, ScheduledStop
from headrace.ledger.retained import producer_of
from headrace.ledger.stored_schema import StoredSchema
from headrace.pipeline import Pipeline
from headrace.pipeline.edits import streams_gone
from headrace.pipeline.integrals import streams_with_rows

Begin = Literal["now", "rows", "beginning"]


class ChangePlan(msgspec.Struct, frozen=True):
    """What a topology change does. Lists name computations, in the order of the graph.

    Attributes:
        added: new computations, with empty state.
        restored: computations that were removed and come back with the state that was kept. (Those that
            work on rows are added anew: they have missed what has changed meanwhile.)
        replaced: computations of the same name with other code; their state is kept.
        removed: computations that are removed. Their state is kept in storage, and their timers do
            not fire.
        forgotten: computations whose state is given up.
        reshaped: states whose shape has changed, with what happens to stored values, by
            computation.
        extended: new states and timers of computations whose state is kept, by computation.
        beginning: the added computations that start at the beginning of their streams.
        seeded: the added computations that begin with the rows which their inputs hold, each with these
            inputs.
        sinks_added, sinks_removed: sinks, by name.
    """

    added: list[str] = []
    restored: list[str] = []
    replaced: list[str] = []
    removed: list[str] = []
    forgotten: list[str] = []
    extended: dict[str, list[str]] = {}
    reshaped: dict[str, dict[str, str]] = {}
    beginning: list[str] = []
    seeded: dict[str, list[str]] = {}
    sinks_added: list[str] = []
    sinks_removed: list[str] = []

    def __str__(self) -> str:
        lines = []
        for name in self.added:
            lines.append(f"add {name}: {self._begins(name)}")
        lines += [f"add {name}: with the state that was kept" for name in self.restored]
        for name in self.replaced:
            more = ", ".join(self.extended.get(name, []))
            given_up = name in self.forgotten
            what = "its state is given up" if given_up else "its state is kept"
            lines.append(f"replace {name}: {what}{f', new: {more}' if more else ''}")
        for name, states in self.reshaped.items():
            lines += [f"  {name}: {state!r} {what}" for state, what in states.items()]
        for name in self.removed:
            what = "given up" if name in self.forgotten else "kept"
            lines.append(f"remove {name}: its state is {what}")
        others = [n for n in self.forgotten if n not in self.removed and n not in self.replaced]
        lines += [f"forget {name}: its state is given up" for name in others]
        lines += [f"add sink {name}" for name in self.sinks_added]
        lines += [f"remove sink {name}" for name in self.sinks_removed]
        return "\n".join(lines) or "nothing changes"

    def _begins(self, name: str) -> str:
        """Return what an added computation begins with."""
        if name in self.seeded:
            return "with the rows of " + ", ".join(self.seeded[name])
        kind = "the beginning of its streams" if name in self.beginning else "now"
        return f"from {kind}, with empty state"


def plan_change(
    stored: StoredSchema,
    before: Pipeline,
    after: Pipeline,
    *,
    forget: Collection[str] = (),
    begin: Mapping[str, str] | None = None,
    behind: Collection[str] = (),
) -> ChangePlan:
    """Return what changing from one graph to another does.

    Args:
        stored: the stored schema.
        before: the pipeline that runs.
        after: the pipeline that is to run.
        forget: computations whose state is to be given up.
        begin: whether added computations start ``now``, with the ``rows`` that their inputs hold, or
            at the ``beginning``. If nothing is said, those begin with rows that work on them.
        behind: computations that lack something of what came before them.

    Raises:
        PipelineError: for a graph that cannot run, or options that make no sense.
        SchemaChanged: for state that the new graph could not read.
    """
    after.check_complete()
    if after.name != before.name:
        raise PipelineError(
            f"the new topology is of pipeline {after.name!r}, but {before.name!r} is running",
            remedy="begin with pipeline.copy()",
        )
    known, gone = stored.get("computations", {}), stored.get("removed", {})
    wanted = after.nodes
    _check_named(forget, {*known, *wanted}, "forget=")
    forget = {*forget, *rows_missed(gone, after)}
    added = [n for n in wanted if n not in known or (n in forget and n not in before.nodes)]
    removed = [name for name in known if name not in wanted and name not in gone]
    restored = [name for name in wanted if name in gone and name not in added]
    check_schema(stored, after.declared_schema(), removed={*removed, *gone}, forgotten=forget)
    beginning = _beginning(begin or {}, added, stored, after, behind)
    seeded = _seeded(begin or {}, added, {*known, *before.injectors}, after, beginning)
    if seeded and behind:
        raise not_yet(next(iter(seeded)), behind)
    return ChangePlan(
        added=added,
        restored=restored,
        replaced=[n for n in wanted if n in before.nodes and _is_other(before, after, n)],
        removed=removed,
        forgotten=[name for name in known if name in forget],
        extended=_extended(known, after.declared_schema()["computations"], forget),
        reshaped=_reshaped(known, after.declared_schema()["computations"], forget),
        beginning=beginning,
        seeded=seeded,
        sinks_added=[name for name in after.sinks if name not in before.sinks],
        sinks_removed=[name for name in before.sinks if name not in after.sinks],
    )


def rows_missed(removed: Collection[str], pipeline: Pipeline) -> list[str]:
    """Return which of the removed computations come back, and need the rows that have changed meanwhile."""
    return [
        name
        for name, node in pipeline.nodes.items()
        if name in removed and node.computation.begins_with_rows
    ]


def _is_other(before: Pipeline, after: Pipeline, name: str) -> bool:
    one, other = before.nodes[name], after.nodes[name]
    return one.computation is not other.computation or one.on_error != other.on_error


def _check_named(names: Collection[str], there: Collection[str], where: str) -> None:
    for name in names:
        if name not in there:
            raise PipelineError(
                f"{where} names {name!r}, and there is no such computation",
                remedy=f"there are: {', '.join(there) or 'none'}",
            )


def _extended(
    known: Mapping[str, Any], wanted: Mapping[str, Any], forget: Collection[str]
) -> dict[str, list[str]]:
    found = {
        name: sorted(set(facts["cells"]) - set(known[name]["cells"]))
        for name, facts in wanted.items()
        if name in known and name not in forget
    }
    return {name: cells for name, cells in found.items() if cells}


def _reshaped(
    known: Mapping[str, Any], wanted: Mapping[str, Any], forget: Collection[str]
) -> dict[str, dict[str, str]]:
    found = {
        name: changes_of(known[name], facts)
        for name, facts in wanted.items()
        if name in known and name not in forget
    }
    return {name: states for name, states in found.items() if states}


def _beginning(
    begin: Mapping[str, str],
    added: Sequence[str],
    stored: StoredSchema,
    full_pipeline: Pipeline,
    behind: Collection[str],
) -> list[str]:
    _check_named(begin, added, "begin= (of added computations)")
    for name, where in begin.items():
        if where not in get_args(Begin):
            raise PipelineError(
                f"computation {name!r} cannot begin at {where!r}",
                remedy='use "now", "rows" or "beginning"',
            )
    found = [name for name in added if begin.get(name) == "beginning"]
    if found and behind:
        raise PipelineError(
            f"{found[0]!r} cannot begin at the beginning while {', '.join(behind)} still catches up",
            remedy="wait until that has arrived (headrace status), or begin now",
        )
    for name in found:
        for stream in full_pipeline.nodes[name].inputs:
            if stream.name in full_pipeline.injectors:
                _check_rereads(full_pipeline, name, stream.name)
            elif producer_of(stream.name) not in found:
                _check_retained(stored, full_pipeline, name, stream.name)
    _check_one_kind(full_pipeline, found)
    return found


def _seeded(
    begin: Mapping[str, str],
    added: Sequence[str],
    known: Collection[str],
    after: Pipeline,
    beginning: Collection[str],
) -> dict[str, list[str]]:
    """Return the added computations that begin with rows, each with the streams that hold these.

    Args:
        begin: what was said of added computations.
        added: the added computations, in the order of the graph.
        known: the injectors and computations that have been there before.
        after: the pipeline that is to run.
        beginning: added computations that start at the beginning of their streams.

    Raises:
        PipelineError: for one that finds no rows where it should.
    """
    requested = [name for name in added if begin.get(name) == "rows"]
    by_itself = [n for n in added if n not in begin and after.nodes[n].computation.begins_with_rows]
    reads = {n: [of.name for of in node.inputs] for n, node in after.nodes.items()}
    tables = streams_with_rows(after)
    found = {}
    for one in beginnings(added, {*requested, *by_itself}, reads, tables, known):
        one.check()
        if one.rows:
            found[one.name] = one.rows
            producers = {producer_of(stream) for stream in reads[one.name]}
            lacks = [name for name in beginning if name in producers]
            if lacks:
                raise not_yet(one.name, lacks)
        elif one.name in requested:
            raise nothing_to_begin_with(one.name)
    return found


def _check_retained(stored: StoredSchema, full_pipeline: Pipeline, name: str, stream: str) -> None:
    """Check that a stream is retained from its very first production.

    Raises:
        PipelineError: when it is not.
    """
    since = stored.get("retained", {}).get(stream) if stream in full_pipeline.retained else None
    if since == 0:
        return
    if since is not None:
        limit = ", since its retain= says so" if stream in full_pipeline.kept else ""
        why = f"it is retained since step {since}, and not from the first one{limit}"
    elif stream in full_pipeline.retained:
        why = "it is retained from now on only"
    else:
        why = "its productions are not made again, and were not retained"
    raise PipelineError(
        f"{name!r} cannot begin at the beginning of {stream!r}: {why}",
        remedy="add a copy of its producer under another name that starts there, too; or start now",
    )


def _check_one_kind(full_pipeline: Pipeline, beginning: Sequence[str]) -> None:
    """Check that a backfill reads either injectors or retained streams, not both.

    How the records of the two were interleaved is no longer known.

    Raises:
        PipelineError: when they read both.
    """
    injected, retained = "", ""
    for name in beginning:
        for stream in full_pipeline.nodes[name].inputs:
            if stream.name in full_pipeline.injectors:
                injected = f"{name!r} that of {stream.name!r}"
            elif producer_of(stream.name) not in beginning:
                retained = f"{name!r} that of the retained {stream.name!r}"
    if injected and retained:
        raise PipelineError(
            f"{injected} and {retained} cannot both be the beginning at which one change begins",
            remedy="add computations of different inputs one after the other; one that reads both: draw "
            "a copy of the retained stream's producer under another name, which begins there too",
        )


def produced_inputs(full_pipeline: Pipeline, name: str) -> list[str]:
    """Return the streams of other computations that a computation reads."""
    inputs = [stream.name for stream in full_pipeline.nodes[name].inputs]
    return [stream for stream in inputs if stream not in full_pipeline.injectors]


def check_behind(full_pipeline: Pipeline, at: Backfill | None) -> None:
    """Check that a backfill finds in a graph what it still has to read.

    Raises:
        PipelineError: when a stream that it reads is not retained any more, or never was.
    """
    if at is None or at.retained is None:
        return
    for name in at.names:
        node = full_pipeline.nodes.get(name)
        for stream in [] if node is None else node.inputs:
            if (
                stream.name not in full_pipeline.retained
                and producer_of(stream.name) not in at.names
            ):
                raise PipelineError(
                    f"{name!r} still catches up with its retained streams, and {stream.name!r} is none",
                    remedy=f"leave its inputs retained until it has arrived (headrace status), or "
                    f"remove {name!r}",
                )


def _check_rereads(full_pipeline: Pipeline, name: str, stream: str) -> None:
    """Check that an injector can be read again from its beginning.

    Raises:
        PipelineError: when it cannot.
    """
    injector = full_pipeline.injectors[stream]
    if injector.check is not None:
        raise PipelineError(
            f"{name!r} cannot begin at the beginning of {stream!r}: all its ids were seen",
            remedy="begin now, or read the same source by an injector of its own",
        )
    if not injector.source.rereads:
        raise PipelineError(
            f"{name!r} cannot begin at the beginning of {stream!r}: its source "
            f"({type(injector.source).__name__}) cannot be read again from its start",
            remedy="begin now, or start a pipeline of its own from another copy of the data",
        )


# -- commands ---------------------------------------------------------------------------------


class ControlState(msgspec.Struct, frozen=True):
    """Everything that commands can change, other than the layout.

    Attributes:
        removed, forgotten: computations that are removed, and those whose state is given up.
        paused: whether no step runs.
        drained_hosts: hosts on which no worker may run.
        scheduled_stop: what happens after a later step; None if no command has said so.
    """

    removed: frozenset[str]
    forgotten: frozenset[str] = frozenset()
    paused: bool = False
    drained_hosts: frozenset[str] = frozenset()
    scheduled_stop: ScheduledStop | None = None


def apply_command(
    control_state: ControlState,
    stored: StoredSchema,
    full_pipeline: Pipeline,
    command: Command,
    *,
    running: bool,
    step: int,
    places: Places | None = None,
) -> ControlState:
    """Return the control state after a command.

    Args:
        control_state: the control state before it.
        stored: the stored schema.
        full_pipeline: the pipeline of the driver's process, including what is removed.
        command: the command.
        running: whether the pipeline runs, or is about to.
        step: the next step.
        places: where workers run; None before the pipeline runs.

    Raises:
        Refused: if the command cannot be applied.
    """
    match command.kind:
        case "pause" | "stop" | "resume":
            return _schedule_stop(control_state, command, running=running, step=step)
        case "change":
            raise Refused(f"{NOT_RUNNING}: start it with the new code")
        case "drain" | "catch_up" | "hand_over" | "step_aside":
            if not running:
                raise Refused(NOT_RUNNING)
            return control_state
        case "remove":
            return _remove(control_state, stored, full_pipeline, command)
        case "restore":
            return _restore(control_state, full_pipeline, command, running=running)
        case "drain_hosts" | "undrain_hosts":
            drained = drained_after(control_state.drained_hosts, command, places)
            return msgspec.structs.replace(control_state, drained_hosts=drained)
        case _:
            raise Refused("the pipeline has no layout yet")


def _schedule_stop(
    control_state: ControlState, command: Command, *, running: bool, step: int
) -> ControlState:
    """Return the control state after a stop, a pause or a resume."""
    scheduled_stop = scheduled_stop_of(command, running=running, step=step)
    if command.at_step or command.kind == "stop":
        return msgspec.structs.replace(control_state, scheduled_stop=scheduled_stop)
    return msgspec.structs.replace(
        control_state, scheduled_stop=scheduled_stop, paused=command.kind == "pause"
    )


def _remove(
    control_state: ControlState, stored: StoredSchema, full_pipeline: Pipeline, command: Command
) -> ControlState:
    known = {*stored.get("computations", {}), *full_pipeline.nodes} - control_state.forgotten
    if not command.names:
        raise Refused("it names no computation")
    for name in command.names:
        if name not in known:
            raise Refused(
                f"there is no computation {name!r}; there are: {', '.join(sorted(known))}"
            )
        if name in control_state.removed and not command.forget:
            raise Refused(f"{name!r} is removed already; its state is kept (--forget gives it up)")
    effective = without(full_pipeline, control_state.removed)
    wanted = [name for name in command.names if name in effective.nodes]
    problem = effective.removal_problem(wanted, command.sinks)
    if problem is not None:
        raise Refused(f"{problem.what}; {problem.remedy}")
    going = streams_gone(effective, wanted)
    other = [n for n in command.sinks if effective.sinks[n].stream.name not in going]
    if other:
        raise Refused(
            f"sink {other[0]!r} takes no stream of what is removed: change it in the code"
        )
    removed = with_checks(full_pipeline, control_state.removed | set(command.names))
    if wanted and not set(effective.nodes) - removed:
        raise Refused("no computation would be left: stop the pipeline instead")
    forgotten = {n for n in command.names if command.forget and n in stored.get("computations", {})}
    return msgspec.structs.replace(
        control_state,
        removed=removed,
        forgotten=control_state.forgotten | forgotten,
    )


def _restore(
    control_state: ControlState, full_pipeline: Pipeline, command: Command, *, running: bool
) -> ControlState:
    if not command.names:
        raise Refused("it names no computation")
    for name in command.names:
        if name not in control_state.removed:
            raise Refused(f"{name!r} is not removed")
        if name not in full_pipeline.nodes:
            raise Refused(
                f"the code that {'runs' if running else 'is started'} does not build {name!r}"
            )
    removed = with_checks(full_pipeline, control_state.removed - set(command.names))
    for name in command.names:
        if name in removed:
            raise Refused(f"{name!r} comes back with the first computation that reads its injector")
    problem = orphaned(full_pipeline, removed)
    if problem is not None:
        raise Refused(problem.what)
    check_rows_again(without(full_pipeline, removed), command.names)
    return msgspec.structs.replace(control_state, removed=removed)


def check_rows_again(pipeline: Pipeline, restored: Collection[str]) -> None:
    """Check that computations that come back, and that need all rows of their inputs, find these.

    Raises:
        Refused: for one that does not.
    """
    reads = {n: [of.name for of in node.inputs] for n, node in pipeline.nodes.items()}
    known = [n for n in (*pipeline.nodes, *pipeline.injectors) if n not in restored]
    again = rows_missed(restored, pipeline)
    for one in beginnings(again, again, reads, streams_with_rows(pipeline), known):
        if one.without:
            raise Refused(
                f"{one.name!r} has missed the rows that have come since it was removed, and nothing keeps "
                f"those of {one.without[0]!r}"
            )


def with_checks(full_pipeline: Pipeline, removed: Collection[str]) -> frozenset[str]:
    """Return what is removed, including the id checks of injectors that nobody reads then.

    The id checks of other injectors are not. A check of ids is removed with the last reader of its
    injector, and comes back with the first.
    """
    users = set(removed) - set(full_pipeline.checks)
    idle = full_pipeline.unread_without(users)
    return frozenset(users | {name for name, of in full_pipeline.checks.items() if of.name in idle})


def without(full_pipeline: Pipeline, removed: Collection[str]) -> Pipeline:
    """Return a pipeline without what was removed, and without the sinks of that.

    Raises:
        PipelineError: when a remaining computation reads a stream of a removed one.
    """
    gone = [name for name in full_pipeline.nodes if name in removed]
    if not gone:
        return full_pipeline
    problem = orphaned(full_pipeline, removed)
    if problem is not None:
        raise problem
    reduced = full_pipeline.copy()
    going = streams_gone(reduced, gone)
    sinks = [s.name for s in reduced.sinks.values() if s.stream.name in going]
    reduced.remove(*gone, sinks=sinks)
    return reduced


def orphaned(full_pipeline: Pipeline, removed: Collection[str]) -> PipelineError | None:
    """Return the error if a computation in the graph reads one that was removed."""
    for node in full_pipeline.nodes.values():
        for stream in node.inputs:
            producer = producer_of(stream.name)
            if node.name not in removed and producer in removed:
                return PipelineError(
                    f"computation {node.name!r} reads {stream.name!r}, but {producer!r} was removed",
                    remedy=f"headrace restore {producer} --storage …, or give {node.name!r} other inputs",
                )
    return None


class CommandsAtStart(msgspec.Struct, frozen=True):
    """The outcome of the commands that were there before the pipeline was started.

    Attributes:
        control_state: the control state after them.
        answers: the answers to them.
        layout_state: the layout state after them; None for a pipeline that has never run.
    """

    control_state: ControlState
    answers: list[Answer]
    layout_state: LayoutState | None = None


def at_opening(
    control_state: ControlState,
    stored: StoredSchema,
    full_pipeline: Pipeline,
    requests: Sequence[CommandRequest],
    step: int,
    layout_state: LayoutState | None = None,
    bounds: Bounds | None = None,
) -> CommandsAtStart:
    """Return the outcome of the commands that nobody has answered yet.

    Args:
        control_state: the control state before them.
        stored: the stored schema.
        full_pipeline: the pipeline of the driver's process, including what is removed.
        requests: the commands.
        step: the step of the claim that will answer them.
        layout_state: the layout state as of the claim; None for a pipeline that has never run.
        bounds: the most that can be asked of the layout.
    """
    control_state = msgspec.structs.replace(
        control_state, removed=with_checks(full_pipeline, control_state.removed)
    )
    answers = []
    for item in requests:
        if layout_state is not None and item.command is not None and item.command.kind in MOVING:
            decided = steer(layout_state, item, RecentStepTimes(), None, bounds)
            layout_state = decided.layout_state
            answers.append(decided.answer)
            continue
        try:
            control_state = decide(
                control_state, stored, full_pipeline, item, running=False, step=step
            )
            answers.append(applied(item, step))
        except Refused as refusal:
            answers.append(refused(item, step, refusal.why))
    return CommandsAtStart(control_state, answers, layout_state)


def decide(
    control_state: ControlState,
    stored: StoredSchema,
    full_pipeline: Pipeline,
    request: CommandRequest,
    *,
    running: bool,
    step: int,
    places: Places | None = None,
) -> ControlState:
    """Return the control state after a command that was found.

    Raises:
        Refused: if the command could not be read, or cannot be applied.
    """
    if request.command is None:
        raise Refused(request.problem)
    return apply_command(
        control_state,
        stored,
        full_pipeline,
        request.command,
        running=running,
        step=step,
        places=places,
    )


def applied(request: CommandRequest, step: int, why: str = "") -> Answer:
    """Return the answer to a command that is applied with a step."""
    return Answer(request.number, _text(request), True, step, why, by=_by(request))


def refused(request: CommandRequest, step: int, why: str) -> Answer:
    """Return the answer to a command that is refused."""
    return Answer(request.number, _text(request), False, step, why, by=_by(request))


def _by(request: CommandRequest) -> str:
    return "" if request.command is None else request.command.by


def _text(request: CommandRequest) -> str:
    return "?" if request.command is None else request.command.text
