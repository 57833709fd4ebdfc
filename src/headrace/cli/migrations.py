"""Commands that move state while a pipeline runs, and show where it is.

``drain`` is another command: it lets all input end. So the command that empties workers has its
full name, ``drain-workers``, as in the API.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from headrace.cli import completion
from headrace.cli.common import (
    REFUSED,
    Duration,
    ask,
    emit,
    head_of,
    output_option,
    pass_on,
    storage_option,
    typed_errors,
    wait_option,
    with_options,
)
from headrace.cli.groups import group_facts, group_lines, runs_of
from headrace.cli.strategies import STRATEGIES, layout_option, strategy_of
from headrace.control.control import Control
from headrace.control.migrations import (
    PRICES_BY,
    Strategy,
    check_injector,
    fact_of,
    planned,
    progress_of,
)
from headrace.coordinator.load.bin_sizes import sizes_of_bins
from headrace.coordinator.migrations.layout_state import layout_state_of
from headrace.errors import ChangeRefused, PipelineError
from headrace.errors.printable import one_line
from headrace.keyspace.groups import Groups
from headrace.keyspace.layout import HASH_BITS, Layout
from headrace.ledger.commands import Command, Kind
from headrace.ledger.head import Head
from headrace.ledger.measurements import newest_measurements
from headrace.ledger.migrations import Goal, Latency, MigrationState, RecordedMigration
from headrace.ledger.stored_schema import groups_of
from headrace.migration.objective import Estimate
from headrace.migration.rounds import batched
from headrace.migration.sharding import Sharding
from headrace.observe.durations import show_duration
from headrace.storage import open_store

#: Largest number of runs of neighbouring bins that ``layout`` shows.
_MOST_RUNS = 64

_strategy_option = click.option(
    "--strategy", default="batched", show_default=True, callback=strategy_of, help=STRATEGIES
)
_prepare_option = click.option(
    "--prepare/--no-prepare",
    default=None,
    help="Load what a round moves before it moves. By default, if that is expected to help.",
)
_objective_option = click.option(
    "--objective",
    type=Duration(),
    default="0s",
    help="Make rounds so small that steps take no longer than this, such as 250ms.",
)
_bins_argument = click.argument("bins", nargs=-1, required=True, metavar="BIN...")


def _requests(*options: Any) -> Callable[[Callable[..., None]], click.Command]:
    """Return a decorator for a command that moves state.

    It adds the options that all of them have.
    """
    common = [
        *options,
        storage_option,
        click.option("--dry-run", is_flag=True, help="Only print the plan."),
        click.option(
            "--if-busy",
            type=click.Choice(["queue", "refuse"]),
            default="queue",
            show_default=True,
            help="What to do while another migration is under way.",
        ),
        wait_option,
        click.option("--follow", is_flag=True, help="Show its progress until it ends."),
        output_option,
    ]

    def decorate(function: Callable[..., None]) -> click.Command:
        name = function.__name__.replace("_", "-")
        return click.command(name)(with_options(common)(function))

    return decorate


#: Options of all commands that may move state.
MOVES = (_strategy_option, _prepare_option, _objective_option)


@_requests(
    click.argument("workers", type=click.IntRange(1)),
    layout_option("How bins are shared, instead of as the pipeline has it"),
    *MOVES,
)
def rescale(workers: int, layout: Sharding | None, **how: Any) -> None:
    """Change the number of workers to WORKERS while the pipeline runs.

    Moves about the least state, unless --layout says otherwise.
    """
    _migrate(Goal("rescale", workers, layout=layout), **how)


@_requests(
    _bins_argument,
    click.option("--to", type=click.IntRange(0), required=True, help="The worker."),
    *MOVES,
)
def move(bins: tuple[str, ...], to: int, **how: Any) -> None:
    """Move BINs to a worker.

    A BIN is a prefix of the hash and its length, such as 0110/4. The prefix of several bins stands
    for all of them. In a group it is clicks:0110/4, or clicks for all bins of the group.
    """
    _migrate(Goal("move", to=to), bins=bins, **how)


@_requests(_bins_argument)
def split(bins: tuple[str, ...], **how: Any) -> None:
    """Split each BIN in two. This moves nothing and rewrites nothing."""
    _migrate(Goal("split"), bins=bins, **how)


@_requests(_bins_argument)
def merge(bins: tuple[str, ...], **how: Any) -> None:
    """Merge all bins within each BIN into one."""
    _migrate(Goal("merge"), bins=bins, **how)


@_requests(
    click.argument("workers", nargs=-1, required=True, type=click.IntRange(0), metavar="WORKER..."),
    *MOVES,
)
def drain_workers(workers: tuple[int, ...], **how: Any) -> None:
    """Move all bins away from WORKERs, so that their machines can be taken away.

    They get nothing more until undrain-workers.
    """
    _migrate(Goal("drain_workers", drained=list(workers)), **how)


@click.command("undrain-workers")
@click.argument("workers", nargs=-1, required=True, type=click.IntRange(0), metavar="WORKER...")
@storage_option
@wait_option
@output_option
def undrain_workers(workers: tuple[int, ...], storage: str, seconds: float, output: str) -> None:
    """Let drained WORKERs own bins again, from the next rebalance or rescale on."""
    with typed_errors():
        command = Command("undrain_workers", workers=list(workers))
        ask(storage, command, seconds, output)


@click.command("assign-partitions")
@click.argument("injector")
@click.argument("partitions", nargs=-1, required=True, metavar="PARTITION=WORKER...")
@storage_option
@wait_option
@output_option
def assign_partitions(
    injector: str, partitions: tuple[str, ...], storage: str, seconds: float, output: str
) -> None:
    """Let the task of a worker read a partition of INJECTOR, in steps that tasks read.

    PARTITION= without a worker lets it be dealt out in turn again.
    """
    with typed_errors():
        readers = dict(_reader(text) for text in partitions)
        check_injector(head_of(storage), injector)
        command = Command("assign_partitions", names=[injector], partitions=readers)
        ask(storage, command, seconds, output)


def _reader(text: str) -> tuple[str, int]:
    name, equals, worker = text.rpartition("=")
    if not equals or not (worker.isdigit() or not worker):
        raise click.BadParameter(f"{text!r} is not PARTITION=WORKER", param_hint="PARTITION=WORKER")
    return name, int(worker) if worker else -1


@_requests(
    click.option(
        "--by",
        type=click.Choice(sorted(PRICES_BY)),
        help="Work or state.  [default: work, or state while too little was measured of work]",
    ),
    click.option("--group", shell_complete=completion.groups, help="Only this group."),
    *MOVES,
)
def rebalance(by: str | None, group: str | None, **how: Any) -> None:
    """Even out the loads of workers, if that is worth its cost."""
    prices = None if by is None else PRICES_BY[by]
    _migrate(Goal("rebalance", prices=prices), group=group, **how)


def _migrate(
    goal: Goal,
    *,
    storage: str,
    dry_run: bool,
    if_busy: Any,
    seconds: float,
    follow: bool,
    output: str,
    strategy: Strategy | None = None,
    prepare: bool | None = None,
    objective: int = 0,
    bins: tuple[str, ...] = (),
    group: str | None = None,
) -> None:
    """Start a migration, or print its plan. Print the outcome."""
    with typed_errors():
        head = head_of(storage)
        groups = groups_of(head.stored_schema)
        goal = msgspec.structs.replace(
            goal,
            strategy=strategy or batched(),
            prepare=prepare,
            objective_us=objective,
            bins=_named(bins, group, groups),
            groups=list(groups.names),
        )
        if dry_run:
            _would(storage, head, goal, output)
            return
        command = Command("migrate", goal=goal, if_busy=if_busy)
        id_ = ask(storage, command, seconds, output, quiet=follow)
        if follow and id_:
            _follow(Control(storage), id_, output)


def _named(bins: tuple[str, ...], group: str | None, groups: Groups) -> list[tuple[int, int]]:
    try:
        return groups.prefixes(bins if group is None else groups.group(group).bin)
    except PipelineError as error:
        raise click.BadParameter(f"{error.what}; {error.remedy}") from None


def _would(storage: str, head: Head, goal: Goal, output: str) -> None:
    try:
        found = planned(head, goal, newest_measurements(open_store(storage)))
    except (ChangeRefused, PipelineError) as error:
        emit({"refused": error.what}, f"would be refused: {error.what}\n{error.remedy}", output)
        sys.exit(REFUSED)
    assert found.estimate is not None
    rounds = len(found.rounds or [])
    facts = {"what": found.what, "steps": rounds, **msgspec.to_builtins(found.estimate)}
    text = f"{found.what}: nothing would have to be done"
    if rounds:
        text = f"{found.what}: {_estimate(found.estimate)}, by {rounds} configuration updates"
    emit(facts, text, output)


def _estimate(found: Estimate) -> str:
    longest = show_duration(found.expected_max_us)
    took = found.expected_duration_us
    whole = "" if took is None else f", {show_duration(took)} in all"
    return (
        f"{found.bins:,} bins ({found.bytes:,} bytes) in {found.rounds:,} rounds; "
        f"the longest step about {longest}{whole} "
        f"(how fast state is opened is {'measured' if found.measured else 'assumed'})"
    )


def _follow(control: Control, id_: int, output: str) -> None:
    """Show the progress of a migration on standard error until it has ended. Then print it."""
    columns = (
        SpinnerColumn(),
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[text]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        facts = fact_of(control.current(), id_)
        task = shown.add_task(escape(one_line(facts.what)), text="", total=None)
        while not facts.is_over:
            far = progress_of(facts)
            shown.update(
                task, text=escape(one_line(str(far))), total=far.of_bins or None, completed=far.bins
            )
            control.pass_time()
            facts = fact_of(control.current(), id_)
    emit(_facts(facts), _text(facts), output)
    if facts.state == "aborted":
        sys.exit(REFUSED)


# -- migrations -------------------------------------------------------------------------------


@click.group(invoke_without_command=True)
@click.option(
    "--storage",
    envvar="HEADRACE_STORAGE",
    shell_complete=completion.folders,
    help="The directory of the pipeline's state.",
)
@output_option
@click.pass_context
def migrations(context: click.Context, storage: str | None, output: str) -> None:
    """Show the migrations that are under way or queued, and the newest that have ended."""
    if context.invoked_subcommand is not None:
        text = {"output": output, **({} if storage is None else {"storage": storage})}
        pass_on(context, migrations.commands, text)
        return
    if storage is None:
        raise click.UsageError("Missing option '--storage' (env var: 'HEADRACE_STORAGE').")
    with typed_errors():
        found = head_of(storage).migrations
        lines = [f"{one.id}  {one.what}: {progress_of(one)}" for one in found]
        emit([_facts(one) for one in found], "\n".join(lines) or "nothing was ever moved", output)


@migrations.command("show")
@click.argument("id_", type=int, metavar="ID", shell_complete=completion.migrations)
@storage_option
@output_option
def show(id_: int, storage: str, output: str) -> None:
    """Show all that is known of migration ID."""
    with typed_errors():
        facts = fact_of(head_of(storage), id_)
        emit(_facts(facts), _text(facts), output)


def _format_progress(kind: Kind, help: str) -> click.Command:
    """Return a command that acts on a migration."""

    @click.command(kind.partition("_")[0], help=help)
    @click.argument("id_", type=int, metavar="ID", shell_complete=completion.migrations)
    @storage_option
    @wait_option
    @output_option
    def command(id_: int, storage: str, seconds: float, output: str) -> None:
        with typed_errors():
            head_of(storage)
            ask(storage, Command(kind, migration=id_), seconds, output)

    return command


for _kind, _help in [
    ("pause_migration", "Let migration ID stop after the round at hand."),
    ("resume_migration", "Let migration ID go on."),
    ("abort_migration", "Let all that migration ID has moved go back, round by round."),
    ("hasten_migration", "Let all that is left of migration ID move at once."),
]:
    migrations.add_command(_format_progress(_kind, _help))  # type: ignore[arg-type]


def _facts(facts: RecordedMigration) -> dict[str, Any]:
    """Return a migration as plain data. Of its rounds, only the number is included."""
    state: MigrationState = facts.state
    return {
        "id": facts.id,
        "what": facts.what,
        "by": facts.by,
        "state": state,
        "why": facts.why,
        "strategy": facts.strategy,
        "progress": msgspec.to_builtins(progress_of(facts)),
        "estimate": msgspec.to_builtins(facts.estimate),
        "began": facts.began and msgspec.structs.asdict(facts.began),
        "ended": facts.ended and msgspec.structs.asdict(facts.ended),
        **{name: msgspec.structs.asdict(getattr(facts, name)) for name in _LATENCIES},
    }


_LATENCIES = ("before", "during", "after")


def _text(facts: RecordedMigration) -> str:
    lines = [f"migration {facts.id}: {facts.what}", f"  {progress_of(facts)}"]
    lines += [f"  why: {facts.why}"] if facts.why else []
    lines.append(f"  asked by {facts.by}; {facts.strategy}")
    if facts.estimate is not None:
        lines.append(f"  expected: {_estimate(facts.estimate)}")
    if facts.began is not None:
        until = "" if facts.ended is None else f" to {facts.ended.step}"
        lines.append(f"  steps {facts.began.step}{until}; {facts.nbytes:,} bytes moved")
    for name in _LATENCIES:
        latency: Latency = getattr(facts, name)
        if latency.steps:
            lines.append(
                f"  steps {name}: p50 {show_duration(latency.p50_us)}, p99 "
                f"{show_duration(latency.p99_us)}, max {show_duration(latency.max_us)} "
                f"({latency.steps:,})"
            )
    return "\n".join(lines)


# -- updates ----------------------------------------------------------------------------------


@click.group(invoke_without_command=True)
@click.option(
    "--storage",
    envvar="HEADRACE_STORAGE",
    shell_complete=completion.folders,
    help="The directory of the pipeline's state.",
)
@output_option
@click.pass_context
def updates(context: click.Context, storage: str | None, output: str) -> None:
    """Show the configuration updates that are published and not in force yet."""
    if context.invoked_subcommand is not None:
        text = {"output": output, **({} if storage is None else {"storage": storage})}
        pass_on(context, updates.commands, text)
        return
    if storage is None:
        raise click.UsageError("Missing option '--storage' (env var: 'HEADRACE_STORAGE').")
    with typed_errors():
        head = head_of(storage)
        layout_state = layout_state_of(head, 0)
        current = head.migration
        found = [
            {
                "step": update.step,
                "workers": update.workers,
                "splits": len(update.splits),
                "moves": sum(count for _, _, count, _ in update.moves),
                "merges": len(update.merges),
                "migration": current.id if current and layout_state.is_a_round(update) else 0,
            }
            for update in head.updates
            if update.step > head.step
        ]
        emit(found, "\n".join(map(_update_text, found)) or "no update is published", output)


def _update_text(facts: dict[str, int]) -> str:
    parts = [f"{facts[name]:,} {name}" for name in ("splits", "moves", "merges") if facts[name]]
    parts += [f"{facts['workers']:,} workers"] if facts["workers"] else []
    of = f" (of migration {facts['migration']})" if facts["migration"] else ""
    return f"from step {facts['step']:,} on: {', '.join(parts) or 'nothing'}{of}"


@updates.command("withdraw")
@click.argument("step", type=click.IntRange(0), metavar="STEP", shell_complete=completion.updates)
@storage_option
@wait_option
@output_option
def withdraw(step: int, storage: str, seconds: float, output: str) -> None:
    """Withdraw the update that is published for STEP and not in force yet."""
    with typed_errors():
        head_of(storage)
        ask(storage, Command("withdraw_update", at_step=step), seconds, output)


# -- the layout -------------------------------------------------------------------------------


@click.command("layout")
@storage_option
@output_option
def show_layout(storage: str, output: str) -> None:
    """Show the layout in force: workers, bins, and which worker owns which. Changes nothing."""
    with typed_errors():
        head = head_of(storage)
        layout = Layout.from_wire(head.layout)
        facts = layout_facts(head, layout)
        emit(facts, _layout_text(facts), output)


def layout_facts(head: Head, layout: Layout) -> dict[str, Any]:
    """Return a layout as plain data: what each worker owns, and runs of similar bins by hash."""
    sizes = sizes_of_bins(head, layout)
    groups = groups_of(head.stored_schema)
    used = groups.used(layout)
    bins, nbytes, share = Counter[int](), Counter[int](), Counter[int]()
    for at, owner in enumerate(layout.owners.tolist()):
        bins[owner] += 1
        share[owner] += 1 << (HASH_BITS - int(layout.bits[at])) if used[at] else 0
        nbytes[owner] += 0 if sizes is None else sizes[at]
    runs = []
    for at, depth, count, owner in runs_of(layout, groups):
        first, last = (groups.name(layout.bin(end)) for end in (at, at + count - 1))
        runs.append({"first": first, "last": last, "bins": count, "bits": depth, "worker": owner})
    return {
        "step": head.step,
        "bins": len(layout),
        "changes": head.layout_version,
        "layout": str(head.layout_rules.sharding),
        "reading": head.layout_rules.reading,
        "published": msgspec.to_builtins(head.updates),
        "workers": [
            {
                "worker": worker,
                "bins": bins[worker],
                "share": share[worker] / share.total(),
                "bytes": None if sizes is None else nbytes[worker],
                "drained": worker in head.layout_rules.drained,
            }
            for worker in range(layout.workers)
        ],
        "groups": group_facts(layout, groups, sizes),
        "runs": runs,
    }


def _layout_text(facts: dict[str, Any]) -> str:
    lines = [
        f"step {facts['step']}: {facts['bins']:,} bins on {len(facts['workers'])} workers, "
        f"{facts['layout']}, changed {facts['changes']} times while running"
    ]
    for of in facts["workers"]:
        size = "" if of["bytes"] is None else f", about {of['bytes']:,} bytes of state"
        drained = ", drained" if of["drained"] else ""
        share = f"{of['share']:.1%} of the keys"
        lines.append(f"  worker {of['worker']}: {of['bins']:,} bins, {share}{size}{drained}")
    for injector, readers in facts["reading"].items():
        named = ", ".join(f"{name or 'all'} by worker {of}" for name, of in readers.items())
        lines.append(f"  injector {injector} is read: {named}; others in turn")
    lines += group_lines(facts["groups"])
    for run in facts["runs"][:_MOST_RUNS]:
        last = "" if run["bins"] == 1 else f" to {run['last']} ({run['bins']:,})"
        lines.append(f"  {run['first']}{last}: worker {run['worker']}")
    more = len(facts["runs"]) - _MOST_RUNS
    lines += [f"  and {more:,} more (--output json shows all)"] if more > 0 else []
    lines += [
        f"  from step {update[0]} on, an update is published" for update in facts["published"]
    ]
    return "\n".join(lines)


COMMANDS: list[click.Command] = [
    rescale,
    move,
    split,
    merge,
    drain_workers,
    undrain_workers,
    assign_partitions,
    rebalance,
    migrations,
    updates,
    show_layout,
]
