"""Makes the page docs/reliability.md, on what long campaigns tried and found, from their JSON."""

from __future__ import annotations

import textwrap
from typing import Any

from tests.faults.simulation.campaign import WANTED
from tests.support.results import PASSED

from benchmarks.tables import RESULTS, Result, load, page, table

NOT_RUN = "not run yet"
#: Maximum width of lines of prose.
_WIDTH = 108
#: The number of seeds that a campaign should have.
WANTED_SEEDS = 100_000
Row = list[Any]


def short(tree: str) -> str:
    """Return the short hash of a source tree."""
    return tree.removeprefix("uncommitted ")[:12] + (" (uncommitted)" if " " in tree else "")


def counts(of: dict[str, int]) -> str:
    """Return the counts of all kinds, as text."""
    return ", ".join(f"{count:,} {name}" for name, count in of.items())


def found_in(name: str) -> Result:
    """Return a file of results; empty if there is none."""
    return load(name) if (RESULTS / f"{name}.json").exists() else {}


# -- the text for each campaign ---------------------------------------------------------------


def simulation(found: dict[str, Any]) -> str:
    """Return the text on the simulated seeds."""
    left = WANTED_SEEDS - found["seeds"]
    return (
        f"{found['seeds']:,} seeds{f' so far, of {WANTED_SEEDS:,}' if left > 0 else ''} "
        f"(from {found['first']} on); "
        f"{found['twice']:,} of them ran twice, with the same events. "
        f"{found['events']:,} events (at least {found['fewest_events']:,} a seed), "
        f"{found['faults']:,} faults (at least {found['fewest_faults']} a seed), "
        f"{found['steps']:,} steps, {found['effects']:,} effects. "
        f"{len(found['wrong'])} seeds with a lost, doubled or wrong effect. {found['seconds'] / 3600:.1f} h"
    )


def crash_points(found: dict[str, Any]) -> str:
    """Return how many crash points of each scenario were hit, as text."""
    parts = [
        f"{name}: {one['struck']:,} of {one['points']:,} points ({one['share']:.0%}) of "
        f"{one['operations']:,} operations, each in five ways; {one['crashes_in_recovery']:,} crashes in "
        f"recovery; {one['wrong']} wrong"
        for name, one in found.items()
    ]
    return ". ".join(parts)


def power_loss(found: dict[str, Any]) -> str:
    """Return how many power losses were checked, and what they left, as text."""
    return ". ".join(
        f"{name}: {one['outcomes']:,} outcomes. Of what was not synced, nothing was left in "
        f"{one['nothing']:,}, a part in {one['part']:,}, and everything, as after a kill, in {one['all']:,}"
        for name, one in found.items()
    )


def disk_full(found: dict[str, Any]) -> str:
    """Return at how many sizes a disk was full, as text."""
    return (
        f"{found['limits']} sizes of a disk, in bytes or in files. At {found['stopped']} of them the "
        f"pipeline stopped with a typed error. It always resumed when there was room, with all its results"
    )


def strace_kills(found: dict[str, Any]) -> str:
    """Return at which calls processes were killed, as text."""
    total = sum(found["kills"].values())
    kills = ", ".join(f"{count:,} at `{call}`" for call, count in found["kills"].items())
    return f"{total} kills: {kills}. After each run every effect was there once"


def spark_kills(found: dict[str, Any]) -> str:
    """Return what was killed, and what was stopped for a while, as text."""
    noticed = counts(found.get("noticed", {}))
    had_tasks = f" ({noticed} had a task that was lost)" if noticed else ""
    return (
        f"{counts(found['struck'])}{had_tasks}, in {found['rounds']} rounds with {found['steps']:,} steps "
        f"in all, seed {found['seed']}. After each round every effect was there once. "
        f"{found['seconds'] / 60:.0f} min"
    )


def damage(found: dict[str, Any]) -> str:
    """Return what was damaged, and how much of it was found, as text."""
    parts = [f"{name}: {counts(found[name])}" for name in ("flips", "cuts", "swaps")]
    size = f"{found['files']} files of {found['bytes']:,} bytes"
    return (
        f"{size}. {'; '.join(parts)}. Damage to what is needed was found, with a typed error where it is "
        f"read. Damage to what is not needed had no effect. After each {found['run_every']}th flip the "
        f"pipeline was also run on"
    )


def planted(found: dict[str, Any]) -> str:
    """Return how many planted bugs were found, as text."""
    total, missed = len(found["findings"]), len(found["missed"])
    said = f"{total - missed} of {total} found"
    if "false_alarms" not in found:
        return said
    return f"{said}. With no bug planted, {len(found['false_alarms'])} of the tests that find them failed"


def recovery(found: dict[str, Any]) -> str:
    """Return how long recovery took after each history, as text."""
    values = {one["name"]: one for one in found["figures"]}
    times = [
        f"{one['value']:.2f} s ({name.removeprefix('seconds_').replace('_', ' ')})"
        for name, one in values.items()
        if name.startswith("seconds_") and "keys" in name
    ]
    ratio = values["long_over_short_history"]["value"]
    return f"{', '.join(times)}: {ratio:.2f} times as long after the long history"


#: For each campaign: what was tried, the command, the file of results, the name in that file, and
#: the function that makes the text.
CAMPAIGNS = [
    (
        "The whole system, simulated under seeds",
        "python -m tests.faults.simulation.campaign",
        "simulation",
        "",
        simulation,
    ),
    (
        "A crash, an error or a lost reply at each operation of the storage",
        "pytest -m soak tests/faults/crashpoints",
        "soak",
        "crash_points_*",
        crash_points,
    ),
    (
        "Power lost at each operation of the file system",
        "pytest -m soak tests/faults/power",
        "soak",
        "power_loss *",
        power_loss,
    ),
    (
        "A full file system (tmpfs)",
        "pytest -m soak tests/faults/storage/test_full_and_read_only.py",
        "soak",
        "disk_full",
        disk_full,
    ),
    (
        "Processes killed at their system calls",
        "pytest -m soak tests/faults/kills",
        "soak",
        "strace_kills",
        strace_kills,
    ),
    (
        "Kills and zombies on Spark",
        "pytest -m soak tests/spark/test_kill_campaign.py",
        "soak",
        "spark_kills",
        spark_kills,
    ),
    (
        "Python workers killed at work, on Spark",
        "pytest -m soak tests/spark/test_kill_campaign.py -k at_work",
        "soak",
        "python_worker_kills",
        spark_kills,
    ),
    (
        "Every byte of a small checkpoint flipped",
        "pytest -m soak tests/faults/damage/test_damaged_checkpoints.py",
        "soak",
        "damage",
        damage,
    ),
    ("Bugs planted on purpose", "pytest -m soak tests/faults/planted", "soak", "planted", planted),
    (
        "Recovery after a long history",
        "python -m benchmarks.recover --keys 10000000 --history 100 10000",
        "recover",
        "",
        recovery,
    ),
]


def figures_of(file: str, name: str) -> tuple[dict[str, Any], list[str], list[str]]:
    """Return figures of a file, the source trees that they are of, and what has not passed.

    If the name ends in ``*``, the figures are by name.
    """
    loaded = found_in(file)
    if not name:
        return loaded, [short(loaded["source_tree"])] if loaded else [], []
    many, start = name.endswith("*"), name.removesuffix("*")
    found = {of: one for of, one in loaded.items() if of == name or (many and of.startswith(start))}
    trees = sorted({short(one["source_tree"]) for one in found.values()})
    figures = {of.removeprefix(start): one["figures"] for of, one in found.items()}
    ended = {of.removeprefix(start): one["ended"] for of, one in found.items()}
    bad = [f"{of} {how}".strip() for of, how in ended.items() if how != PASSED]
    return figures if many else figures.get("", {}), trees, bad


def campaigns() -> str:
    """Return the table of all campaigns."""
    rows: list[Row] = [["what was tried", "what was seen", "command", "source tree"]]
    for what, command, file, name, says in CAMPAIGNS:
        figures, trees, bad = figures_of(file, name)
        # (If the whole file belongs to the campaign, it has the command, and so how much was
        # tried.)
        called = figures["command"] if figures and not name else command
        said = "; ".join(bad) or (says(figures) if figures else NOT_RUN)
        rows.append([what, said, f"`{called}`", ", ".join(trees)])
    return table(rows)


def situations() -> str:
    """Return the table of situations, with the number of seeds in which each occurred."""
    found = found_in("simulation")
    if not found:
        return f"{NOT_RUN}."
    seen = found["seeds_with"]
    rows = [[name, f"{seen.get(name, 0):,}", "yes"] for name in WANTED]
    rows += [[name, f"{count:,}", ""] for name, count in seen.items() if name not in WANTED]
    return table([["situation", "seeds", "must come up"], *sorted(rows)])


def finds() -> str:
    """Return the table of how many seeds the simulation needs to find planted bugs."""
    found = found_in("simulation_finds")
    if not found:
        return f"{NOT_RUN}."
    rows = [
        [
            name,
            f"{one['seeds']:,}" if one["problem"] else f"not in {one['seeds']:,}",
            f"`{one['problem'][:100]}`" if one["problem"] else "",
        ]
        for name, one in found["found"].items()
    ]
    tree = short(found["source_tree"])
    return table([["bug", "seeds", "what was wrong"], *rows]) + f"\n\nSource tree {tree}."


def planted_bugs() -> str:
    """Return the table of planted bugs."""
    found, _, _ = figures_of("soak", "planted")
    if not found:
        return f"{NOT_RUN}."
    rows = [
        [one["name"], one["what"], f"`{one['by']}`" if one["found"] else "not found"]
        for one in found["findings"]
    ]
    return table([["bug", "what is wrong with it", "found by"], *rows])


def faults() -> str:
    """Return how often each kind of fault occurs in a seed."""
    found = found_in("simulated_faults")
    if not found:
        return "How many faults of each kind a seed has was not measured yet."
    values = {one["name"]: one["value"] for one in found["figures"]}
    all_of_them, failing = values["faults_a_seed"], values["failing_faults_a_seed"]
    said = (
        f"{all_of_them:.0f} faults a seed in the mean, of which {failing:.0f} make something fail or "
        f"die (`{found['command']}`, source tree {short(found['source_tree'])}):"
    )
    return f"{said}\n\n{table(found['table'])}"


def in_suite() -> str:
    """Return how long the campaigns' parts in the suite take, as text."""
    found = found_in("rooms")
    if not found:
        return ""
    (total, *rooms) = found["figures"]
    each = ", ".join(f"{one['name'].replace('_', ' ')} {one['value']:.0f}" for one in rooms)
    failed = f"; failed: {', '.join(found['failed'])}" if found["failed"] else ""
    said = (
        f"The parts in `make test` take {total['value'] / 60:.1f} minutes in all, one after another: "
        f"{each} s{failed} (`{found['command']}`, source tree {short(found['source_tree'])})."
    )
    return textwrap.fill(said, _WIDTH, break_long_words=False, break_on_hyphens=False)


def flat() -> str:
    """Return the tables of what was measured over thousands of steps."""
    parts, results = [], found_in("soak")
    for exchange in ("driver", "shuffle"):
        found = results.get(f"flat_{exchange}")
        if found is None:
            continue
        seen = found["figures"]
        rows = [list(seen[0]), *([row[name] for name in seen[0]] for row in seen)]
        tree, ended = short(found["source_tree"]), found.get("ended", "outcome not recorded")
        parts.append(
            f"With the {exchange} exchange (source tree {tree}, {ended}):\n\n{table(rows)}"
        )
    return "\n\n".join(parts)


def flights_killed() -> str:
    """Return how often the flights job was killed, as text."""
    kills = found_in("soak")["kills"]
    facts = kills["figures"]
    return (
        f"{sum(facts['killed'].values())} kills ({counts(dict(sorted(facts['killed'].items())))}) in "
        f"{facts['rounds']} rounds, seed {facts['seed']}: {kills['ended']}. "
        f"Source tree {short(kills['source_tree'])}."
    )


def reliability() -> str:
    """Return the page."""
    return page("reliability").format(
        table=campaigns(),
        situations=situations(),
        planted=planted_bugs(),
        flat=flat(),
        kills=flights_killed(),
        finds=finds(),
        faults=faults(),
        in_suite=in_suite(),
    )
