"""An alert says what is wrong, why, since when and what to do; a pipeline that is well has none."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headrace.cli import main
from headrace.ledger.records import ScheduledStop
from headrace.observe.alerts import HELD_S, Alert, alerts_of
from headrace.observe.bins import HottestBin
from headrace.observe.event_times import EventTime
from headrace.observe.leaders import LeaderView
from headrace.observe.picture import HotKeyPicture, LoadPicture, Picture, WorkPicture
from headrace.observe.watching import StorageWatcher
from headrace.observe.web.pages import ways_of
from headrace.observe.why import Waits
from tests.support.checkpointed import driven, items
from tests.support.watched_storage import WatchedStore

LEADS = LeaderView("leads", "host:1", 0.1)
WAY = [
    Waits("cells", "2024-01-01T00:00:00Z", 3, 90.0, "stream 'items'"),
    Waits("items", "2024-01-01T00:00:00Z", 3, 90.0, "partition 'b'", "see to it", "b"),
]
EVEN = LoadPicture(3, 0.0, 0, 10.0, False, 1.0, 1.0, None)
replace = msgspec.structs.replace


@pytest.fixture(name="well", scope="module")
def _well() -> Picture:
    store = WatchedStore()
    t = driven(store, steps=4)
    picture = StorageWatcher(1, store, "x").sight().reading.picture
    t.close()
    assert picture is not None
    moves = {name: replace(of, moved_s=1.0) for name, of in picture.computations.items()}
    return replace(picture, leader=LEADS, age_s=0.5, load=EVEN, computations=moves)


def only(found: list[Alert]) -> Alert:
    (alert,) = found
    assert alert.text
    assert alert.text[-1] not in ".:"
    return alert


def test_a_pipeline_that_is_well_has_no_alert(well: Picture) -> None:
    assert alerts_of(well, {"cells": WAY}) == []


@pytest.mark.parametrize(
    ("leader", "level", "says"),
    [
        (LeaderView("silent", "host:1", 12.0), "critical", "has fallen silent"),
        (LeaderView("ended", "host:1", 12.0, "it failed"), "critical", "has ended"),
        (LeaderView("ended", "host:1", 12.0, "drained", True), "note", "has ended: drained"),
        (LeaderView("none"), "critical", "No driver leads"),
    ],
)
def test_a_leader_that_is_gone(well: Picture, leader: LeaderView, level: str, says: str) -> None:
    alert = only(alerts_of(replace(well, leader=leader), {}))
    assert alert.level == level
    assert says in alert.text
    assert alert.since_s == (0.5 if leader.silent_s is None else 12.0)
    assert alert.remedy


@pytest.mark.parametrize(
    ("change", "level"),
    [
        ({"waits": True}, "critical"),
        ({"behind_s": 11.0, "behind_steps": 4}, "warning"),
        ({"busy": 0.9, "takes_ms": 1200.0}, "warning"),
    ],
)
def test_a_slow_sink(well: Picture, change: dict[str, Any], level: str) -> None:
    name, sink = next(iter(well.sinks.items()))
    sinks = {**well.sinks, name: replace(sink, **change)}
    alert = only(alerts_of(replace(well, sinks=sinks), {}))
    assert (alert.level, alert.subject, alert.view) == (level, f"sink:{name}", "sinks")


def test_one_holder_is_one_alert_however_many_wait_for_it(well: Picture) -> None:
    held = {name: replace(of, moved_s=HELD_S + 1.0) for name, of in well.computations.items()}
    ways = {"cells": WAY, "tables": WAY, "ordered": WAY}
    alert = only(alerts_of(replace(well, computations=held), ways))
    assert (alert.subject, alert.since_s, alert.remedy) == ("items", 90.0, "See to it")
    assert alert.text == "Partition 'b' of items holds the watermark of cells, tables, ordered"
    assert "partition 'b'" in alert.why


def test_a_pipeline_without_input_is_not_held(well: Picture) -> None:
    held = {name: replace(of, moved_s=500.0) for name, of in well.computations.items()}
    quiet = replace(well, computations=held, age_s=499.0)
    assert alerts_of(quiet, {"cells": WAY}) == []
    assert alerts_of(replace(quiet, age_s=1.0, input="ended"), {"cells": WAY}) == []


@pytest.mark.parametrize(
    ("load", "view"),
    [
        ({"bin_skew": 5.0}, "bins"),
        ({"worker_skew": 2.5}, "workers"),
        ({"saturated": True}, "sinks"),
    ],
)
def test_uneven_or_too_much_load(well: Picture, load: dict[str, Any], view: str) -> None:
    alert = only(alerts_of(replace(well, load=replace(EVEN, **load)), {}, HottestBin("01/2", 1)))
    assert (alert.level, alert.view) == ("warning", view)
    if view == "bins":
        assert alert.text == "Bin 01/2 of worker 1 has 5.0 times the mean load"


def test_input_that_waits_says_for_how_long_and_whether_the_sink_takes_anything(
    well: Picture,
) -> None:
    name, sink = next(iter(well.sinks.items()))
    waits = replace(sink, waits=True, waits_s=7.0, takes_ms=None, busy=None)
    alert = only(alerts_of(replace(well, sinks={name: waits}), {}))
    assert (alert.since_s, alert.at_least) == (7.0, False)
    assert (well.clock_s, well.age_s, alert.since_at_s) == (1700000030.0, 0.5, 1700000023.5)
    assert "takes no results" in alert.remedy
    slow = replace(waits, takes_ms=900.0, busy=1.0)
    assert "only slowly" in only(alerts_of(replace(well, sinks={name: slow}), {})).remedy


def test_a_migration_under_way_is_a_note_with_its_rounds() -> None:
    store = WatchedStore()
    t = driven(store, steps=4)
    move = t.rescale(5)
    for at in range(4):
        t.push_many("items", items(at * 5, 5))
        t.step()
        picture = StorageWatcher(1, store, "x").sight().reading.picture
        assert picture is not None
        if picture.migration is not None:
            break
    notes = [of for of in alerts_of(replace(picture, leader=LEADS), {}) if of.level == "note"]
    assert f"Migration {move.id} is under way: rescale to 5 workers" in only(notes).text
    assert "rounds are done" in only(notes).why
    t.close()


@pytest.mark.parametrize(("key", "named"), [(["eu", "ann"], "Key eu, ann"), (None, "One key")])
def test_a_hot_bin_names_the_key_that_makes_it_hot_and_every_computation_where_it_is(
    well: Picture, key: list[str] | None, named: str
) -> None:
    hot = HotKeyPicture("cells", key, "01/2", 1, 0.52, 0.5, 0.54)
    also = replace(hot, computation="tables", share=0.5, at_least=0.48)
    load = replace(EVEN, bin_skew=9.0, hot_keys=[replace(hot, bin="00/2"), hot, also], hot_s=7.0)
    full = replace(well, workers=[replace(of, busy=0.75) for of in well.workers])
    alert = only(alerts_of(replace(full, load=load), {}, HottestBin("01/2", 1)))
    assert alert.text == f"{named} has 52% of the records of cells, tables"
    assert "computed by worker 1, in bin 01/2" in alert.why
    assert "between 48% and 54%" in alert.why
    assert "9" not in alert.text, "how many times the mean follows from the number of bins alone"
    assert alert.remedy.startswith("More workers do not help")
    assert (alert.level, alert.command, alert.since_s) == ("warning", "load", 7.0)
    small = replace(load, hot_keys=[replace(hot, share=0.05)])
    alert = only(alerts_of(replace(well, load=small), {}, HottestBin("01/2", 1)))
    assert alert.why.startswith("no single key stands out there")


def test_what_is_hot_on_a_worker_that_has_time_left_is_a_note(well: Picture) -> None:
    hot = HotKeyPicture("cells", ["ann"], "01/2", 1, 0.52, 0.5, 0.54)
    load = replace(EVEN, bin_skew=9.0, hot_keys=[hot])
    idle = replace(well, load=load, workers=[replace(of, busy=0.04) for of in well.workers])
    for of in (idle, replace(idle, load=replace(load, hot_keys=[]))):
        alert = only(alerts_of(of, {}, HottestBin("01/2", 1)))
        assert alert.level == "note"
        assert "harmless now" in alert.text
        assert "busy 4% of the time" in alert.why
    uneven = replace(idle, load=replace(EVEN, worker_skew=2.5))
    assert only(alerts_of(uneven, {})).level == "note"


def test_a_held_watermark_says_how_old_the_newest_record_is_and_whose_timers_wait(
    well: Picture,
) -> None:
    newest = EventTime.of(1_700_000_000_000_000)
    way = [WAY[0], replace(WAY[1], newest=newest, newest_age_s=228.0)]
    held = {name: replace(of, moved_s=HELD_S + 1.0) for name, of in well.computations.items()}
    held["cells"] = replace(held["cells"], oldest=EventTime.of(1_700_000_002_000_000))
    held["tables"] = replace(held["tables"], oldest=None)
    alert = only(alerts_of(replace(well, computations=held), {"cells": way, "tables": way}))
    assert alert.text.endswith(": its newest record is from 2023-11-14T22:13:20Z (3.8 min ago)")
    assert alert.since_s is None, "there is one time, and it is that of the silence"
    assert "Timers of cells wait" in alert.why
    assert "due at 2023-11-14T22:13:22Z): none has fired since step 3, 1.5 min ago" in alert.why
    assert "tables" not in alert.why
    held["cells"] = replace(held["cells"], oldest=None)
    alert = only(alerts_of(replace(well, computations=held), {"cells": way, "tables": way}))
    assert alert.why.endswith("None of them has a timer that waits")


@pytest.mark.parametrize(
    ("falls_back", "says"),
    [(0.2, "falls back by 12.0 s each minute"), (0.0, "throughput is not lost"), (None, "late")],
)
def test_input_that_waits_says_what_that_means(
    well: Picture, falls_back: float | None, says: str
) -> None:
    name, sink = next(iter(well.sinks.items()))
    slow = replace(sink, waits=True, waits_s=7.0, slow_s=60.0, takes_ms=900.0, busy=1.0)
    slow = replace(slow, behind_s=40.0, target="Calls: shop.receive()")
    alert = only(alerts_of(replace(well, sinks={name: slow}, falls_back=falls_back), {}))
    assert says in alert.why
    for part in ("slow for 1.0 min", "writes to Calls: shop.receive()", "40.0 s late"):
        assert part in alert.why
    assert "Settings.limit" in alert.remedy


def test_a_pipeline_that_starts_is_not_said_to_be_well(well: Picture) -> None:
    starting = only(alerts_of(replace(well, steps_done=0), {}))
    assert (starting.level, starting.text) == ("note", "Starting: no step yet")
    unread = {name: replace(of, read=0, ended=False) for name, of in well.injectors.items()}
    assert (
        only(alerts_of(replace(well, injectors=unread), {})).text == "No record has been read yet"
    )


def test_a_worker_that_is_busy_because_of_a_hot_bin_is_no_alert_of_its_own(well: Picture) -> None:
    workers = [replace(of, records_per_s=float(at == 1)) for at, of in enumerate(well.workers)]
    uneven = replace(well, load=replace(EVEN, bin_skew=9.0, worker_skew=2.5), workers=workers)
    assert only(alerts_of(uneven, {}, HottestBin("01/2", 1))).view == "bins"
    assert len(alerts_of(uneven, {}, HottestBin("01/2", 0))) == 2


def test_a_slow_sink_says_how_long_it_takes_and_how_often_steps_come(well: Picture) -> None:
    assert well.recent is not None
    name, sink = next(iter(well.sinks.items()))
    sinks = {**well.sinks, name: replace(sink, busy=0.9, takes_ms=1200.0)}
    recent = replace(well.recent, steps_per_s=2.0)
    alert = only(alerts_of(replace(well, sinks=sinks, recent=recent), {}))
    assert alert.text == f"Sink {name} is busy 90% of the time"
    assert alert.why.startswith(
        "it takes 1.2 s for the results of a step, and a step comes every 500 ms, with 5 records"
    )


def test_a_busy_worker_says_what_it_does_most(well: Picture) -> None:
    work = {
        "cells": WorkPicture([1.0, 9.0, 1.0], 11.0, 2.5),
        "tables": WorkPicture([1.0, 1.0, 1.0], 3.0, 1.0),
    }
    workers = [replace(of, records_per_s=float(at == 1)) for at, of in enumerate(well.workers)]
    load = replace(EVEN, worker_skew=2.5, work=work)
    alert = only(alerts_of(replace(well, load=load, workers=workers), {}))
    assert alert.text == "Worker 1 has 2.5 times the mean load"
    assert alert.why == "90% of its work is cells"


def test_lost_records_and_lost_time(well: Picture) -> None:
    assert well.recent is not None
    seen = well.recent.computations
    recent = replace(
        well.recent,
        computations={**seen, "cells": replace(seen["cells"], skipped=3)},
        unread={"items": 2},
        phases=[replace(well.recent.phases[0], name="lost", share=0.5)],
    )
    found = alerts_of(replace(well, recent=recent), {})
    assert [alert.subject for alert in found] == ["cells", "items", ""]
    assert "50%" in found[2].text


def test_what_somebody_wanted_is_a_note(well: Picture) -> None:
    wanted = replace(
        well, paused=True, scheduled_stop=ScheduledStop("stop", 9), drained_hosts=["host-a"]
    )
    found = alerts_of(wanted, {})
    assert {alert.level for alert in found} == {"note"}
    assert len(found) == 3


def test_the_worst_comes_first(well: Picture) -> None:
    found = alerts_of(
        replace(well, paused=True, leader=LeaderView("none"), load=replace(EVEN, bin_skew=9.0)), {}
    )
    assert [alert.level for alert in found] == ["critical", "warning", "note"]


def test_each_command_of_an_alert_exists(well: Picture) -> None:
    from click.testing import CliRunner

    everything = replace(
        well,
        leader=LeaderView("none"),
        paused=True,
        load=replace(EVEN, bin_skew=9.0, worker_skew=9.0, saturated=True),
        computations={n: replace(of, moved_s=500.0) for n, of in well.computations.items()},
    )
    commands = {alert.command for alert in alerts_of(everything, {"cells": WAY})}
    assert len(commands) > 3
    for command in commands:
        arguments = [*command.split(), "--storage", "not-there"]
        found = CliRunner().invoke(main, arguments)
        assert found.exit_code != 2, (command, found.output)


def test_each_computation_has_a_way() -> None:
    store = WatchedStore()
    t = driven(store, steps=2)
    sight = StorageWatcher(1, store, "x").sight()
    assert sight.seen is not None
    ways = ways_of(sight.seen, sight.now_us)
    assert set(ways) == {"items.ids", "cells", "tables", "ordered"}
    t.close()
