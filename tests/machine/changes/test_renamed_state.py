"""A state that is renamed comes along; one that is gone is refused, unless the code says so."""

from __future__ import annotations

from typing import Any

import pytest

import headrace as hr
from headrace.errors import PipelineError, SchemaChanged, UserCodeError
from headrace.testing import Harness, drive
from tests.machine.changes.test_state_schemas import SETTINGS, drawn, driven, idle_steps, push


class Visits(hr.Computation):
    """Keeps something of every kind."""

    last = hr.ValueState(int, default=0)
    seen = hr.MapState(str, int)
    each = hr.ListState(int)
    short = hr.ValueState(int, default=0, ttl="1h", ttl_domain=hr.WALL_TIME)
    held = hr.PerWorker(int, default=0, merge=int.__add__)
    idle = hr.Timer(hr.EVENT_TIME)
    slow = hr.Timer(hr.WALL_TIME, holds=True)
    later = hr.Posted(int)
    out = hr.Output(str)

    def process_record(self, ctx: Any, record: hr.Record) -> None:
        n = record.value
        if record.stream == "later":
            ctx.produce("out", f"post {n}")
            return
        self.last.value = n.n
        self.seen[f"n{n.n}"] = n.n
        self.each.append(n.n)
        self.short.value += n.n
        self.held.value += n.n
        self.idle.set(1_000)
        ctx.post(1_000, n.n)

    def process_timer(self, ctx: Any, timer: hr.Fired) -> None:
        ctx.produce("out", f"{timer.name} of {sorted(self.seen)}")


class Renamed(hr.Computation):
    """The same under other names."""

    newest = hr.ValueState(int, default=0, renamed_from="last")
    counts = hr.MapState(str, int, renamed_from="seen")
    all = hr.ListState(int, renamed_from="each")
    brief = hr.ValueState(int, default=0, ttl="1h", ttl_domain=hr.WALL_TIME, renamed_from="short")
    total = hr.PerWorker(int, default=0, merge=int.__add__, renamed_from="held")
    quiet = hr.Timer(hr.EVENT_TIME, renamed_from="idle")
    slack = hr.Timer(hr.WALL_TIME, holds=True, renamed_from="slow")
    soon = hr.Posted(int, renamed_from="later")
    out = hr.Output(str)

    def process_record(self, ctx: Any, record: hr.Record) -> None:
        n = record.value
        if record.stream == "soon":
            ctx.produce("out", f"post {n}")
            return
        self.newest.value = n.n
        self.counts[f"n{n.n}"] = n.n
        self.all.append(n.n)
        self.brief.value += n.n
        self.total.value += n.n

    def process_timer(self, ctx: Any, timer: hr.Fired) -> None:
        ctx.produce("out", f"{timer.name} of {sorted(self.counts)}")


class Upgraded(Renamed):
    counts = hr.MapState(  # type: ignore[assignment]
        str, str, version=2, upgrade={1: lambda n: f"was {n}"}, renamed_from="seen"
    )

    def process_record(self, ctx: Any, record: hr.Record) -> None:
        """Looks, and changes nothing."""


class Totals(hr.ColumnarComputation):
    totals = hr.TableState({"n": int})
    done = hr.Timer(hr.EVENT_TIME)
    out = hr.Output(int)

    def process_batch(self, ctx: Any, batch: hr.KeyedBatch) -> None:
        rows = self.totals.at(batch.keys)
        rows.upsert(n=rows["n"] + batch.sum("n"))
        self.done.set(batch.keys, 1_000)

    def process_timers(self, ctx: Any, fired: hr.FiredBatch) -> None:
        ctx.produce("out", fired.keys, self.totals.at(fired.keys)["n"])


class Sums(hr.ColumnarComputation):
    sums = hr.TableState({"n": int}, renamed_from="totals")
    end = hr.Timer(hr.EVENT_TIME, renamed_from="done")
    out = hr.Output(int)

    def process_batch(self, ctx: Any, batch: hr.KeyedBatch) -> None:
        rows = self.sums.at(batch.keys)
        rows.upsert(n=rows["n"] + batch.sum("n"))

    def process_timers(self, ctx: Any, fired: hr.FiredBatch) -> None:
        assert fired.name == "end"
        ctx.produce("out", fired.keys, self.sums.at(fired.keys)["n"])


def stored_by(computation: Any, *items: tuple[str, int]) -> Harness:
    t = drive(drawn(computation), settings=SETTINGS)
    push(t, *(items or (("a", 1), ("b", 2), ("a", 3))))
    return t


OF_A = {"newest": 3, "counts": {"n1": 1, "n3": 3}, "all": [1, 3], "brief": 4}


@pytest.mark.parametrize("steps", [0, 6])
def test_renamed_state_of_every_kind_comes_along(steps: int) -> None:
    with driven(stored_by(Visits()), Renamed()) as t:
        idle_steps(t, steps)
        assert t.state("it", "a") == OF_A
        assert [timer.name for timer in t.timers("it", "a")] == ["quiet"]
        push(t, ("a", 5))
        t.crash()
        t.resume()
        assert t.state("it", "a")["all"] == [1, 3, 5]
        assert t.state("it", "a")["brief"] == 9
        total = sum(of["total"] for of in t.per_worker("it").values())
        assert total == 1 + 2 + 3 + 5 + 7 * steps


def test_pending_timers_and_posts_fire_under_their_new_names() -> None:
    with driven(stored_by(Visits()), Renamed()) as t:
        t.end("items")
        t.run()
        of_a = [row.value for row in t.outputs("it.out") if row.key == "a"]
    assert sorted(of_a) == ["post 1", "post 3", "quiet of ['n1', 'n3']"]


def test_a_deletion_under_the_new_name_deletes_what_the_old_name_stored() -> None:
    class Clears(Renamed):
        def process_record(self, ctx: Any, record: hr.Record) -> None:
            self.counts.pop("n1", None)
            self.newest.clear()

    with driven(stored_by(Visits()), Clears()) as t:
        push(t, ("a", 0))
        t.crash()
        t.resume()
        assert t.state("it", "a")["counts"] == {"n3": 3}
        assert t.state("it", "a")["newest"] == 0


def test_renamed_state_moves_with_its_bins() -> None:
    store = stored_by(Visits(), *((f"k{n}", n) for n in range(40)))
    with driven(store, Renamed()) as t:
        move = t.rescale(workers=5, strategy=hr.batched(4))
        push(t, ("k3", 100))
        move.wait()
        push(t, ("k3", 100))
        found = {key: t.state("it", key)["all"] for key in t.keys("it") if key.startswith("k")}
    assert found.pop("k3") == [3, 100, 100]
    assert found == {f"k{n}": [n] for n in range(40) if n != 3}


def test_a_state_is_renamed_and_upgraded_at_once_and_while_it_runs() -> None:
    with stored_by(Visits()) as t:
        t.change(drawn(Renamed()))
        plan = t.change(drawn(Upgraded()))
        assert plan.reshaped["it"]["counts"] == "upgraded from version 1 as it is read"
        assert t.state("it", "b")["counts"] == {"n2": "was 2"}


def test_code_from_before_the_renaming_still_finds_its_state() -> None:
    with driven(stored_by(Visits()), Renamed()) as t:
        push(t, ("a", 5))
    with driven(t, Visits()) as t:
        assert t.state("it", "a")["each"] == [1, 3, 5]


@pytest.mark.parametrize("steps", [0, 6])
def test_a_renamed_table_and_its_timers_come_along(steps: int) -> None:
    with driven(stored_by(Totals()), Sums()) as t:
        idle_steps(t, steps)
        assert t.state("it", "a") == {"sums": {"n": 4}}
        assert [timer.name for timer in t.timers("it", "a")] == ["end"]
        push(t, ("a", 5))
        t.rescale(workers=3).wait()
        t.crash()
        t.resume()
        t.end("items")
        t.run()
        assert {row.key: row.value for row in t.outputs("it.out")}["a"] == 9


def test_names_can_be_swapped() -> None:
    class Before(hr.Computation):
        one = hr.ValueState(int, default=0)
        two = hr.ValueState(int, default=0)

        def process_record(self, ctx: Any, record: hr.Record) -> None:
            self.one.value, self.two.value = 1, 2

    class After(Before):
        one = hr.ValueState(int, default=0, renamed_from="two")
        two = hr.ValueState(int, default=0, renamed_from="one")

    with driven(stored_by(Before()), After()) as t:
        assert t.state("it", "a") == {"one": 2, "two": 1}


# -- what is refused -------------------------------------------------------------------------------


class OnlyCounts(hr.Computation):
    """Was ``seen``, as the author knows; nobody has said so."""

    last = hr.ValueState(int, default=0)
    counts = hr.MapState(str, int)

    def process_record(self, ctx: Any, record: hr.Record) -> None:
        """Nothing."""


class TwoStates(hr.Computation):
    last = hr.ValueState(int, default=0)
    seen = hr.MapState(str, int)

    def process_record(self, ctx: Any, record: hr.Record) -> None:
        self.last.value = record.value.n
        self.seen[f"n{record.value.n}"] = record.value.n


def test_a_state_that_is_gone_is_refused_with_the_name_that_it_may_have_now() -> None:
    store = stored_by(TwoStates())
    with pytest.raises(SchemaChanged) as caught:
        driven(store, OnlyCounts())
    text = str(caught.value)
    assert "computation 'it': 'seen' (map str → int) is stored, and no longer declared" in text
    assert "is it 'counts' now, which is new and of the same type?" in text
    assert "counts = hr.MapState(…, renamed_from='seen')" in text
    assert "seen = hr.Removed()" in text
    with driven(store, TwoStates()) as t:
        assert t.state("it", "a") == {"last": 3, "seen": {"n1": 1, "n3": 3}}


def test_a_change_of_the_running_pipeline_is_refused_alike_and_it_goes_on() -> None:
    with stored_by(TwoStates()) as t:
        with pytest.raises(SchemaChanged, match="is it 'counts' now"):
            t.change(drawn(OnlyCounts()))
        push(t, ("a", 5))
        assert t.state("it", "a")["seen"] == {"n1": 1, "n3": 3, "n5": 5}


def test_a_state_of_another_type_is_no_likely_name() -> None:
    class Other(TwoStates):
        seen = None  # type: ignore[assignment]
        counts = hr.MapState(str, float)

        def process_record(self, ctx: Any, record: hr.Record) -> None:
            """Nothing."""

    with pytest.raises(SchemaChanged) as caught:
        driven(stored_by(TwoStates()), Other())
    assert "is it" not in str(caught.value)
    assert "seen = hr.Removed()" in str(caught.value)


def test_a_renamed_timer_is_refused_as_pending_with_its_likely_name() -> None:
    class Ticks(hr.Computation):
        tick = hr.Timer(hr.EVENT_TIME)

        def process_record(self, ctx: Any, record: hr.Record) -> None:
            self.tick.set(10**15)

        def process_timer(self, ctx: Any, timer: hr.Fired) -> None:
            """Never comes."""

    class Tocks(Ticks):
        tick = None  # type: ignore[assignment]
        tock = hr.Timer(hr.EVENT_TIME)

        def process_record(self, ctx: Any, record: hr.Record) -> None:
            self.tock.set(10**15)

    class Removes(Tocks):
        tick = hr.Removed()  # type: ignore[assignment]

    store = stored_by(Ticks())
    for computation in (Tocks(), Removes()):
        with pytest.raises(SchemaChanged, match="may be pending; is it 'tock' now") as caught:
            driven(store, computation)
        assert "tock = hr.Timer(…, renamed_from='tick')" in str(caught.value)


def test_a_storage_that_knows_the_new_name_says_to_leave_the_old_one_out() -> None:
    class New(TwoStates):
        seen = None  # type: ignore[assignment]
        counts = hr.MapState(str, int)

        def process_record(self, ctx: Any, record: hr.Record) -> None:
            self.counts["n"] = record.value.n

    class Says(New):
        counts = hr.MapState(str, int, renamed_from="seen")  # type: ignore[assignment]

    with pytest.raises(SchemaChanged, match="leave out renamed_from='seen'"):
        driven(stored_by(New()), Says())


def test_a_difference_of_a_renamed_state_names_both() -> None:
    class Float(Renamed):
        counts = hr.MapState(str, str, renamed_from="seen")  # type: ignore[assignment]

    with pytest.raises(SchemaChanged, match=r"'counts' \(stored as 'seen'\) was map str → int"):
        driven(stored_by(Visits()), Float())


# -- what is removed on purpose --------------------------------------------------------------------


class Removes(hr.Computation):
    last = hr.ValueState(int, default=0)
    seen = hr.Removed()

    def process_record(self, ctx: Any, record: hr.Record) -> None:
        self.last.value = record.value.n


class Without(Removes):
    seen = None  # type: ignore[assignment]


def test_a_state_is_removed_on_purpose_and_the_storage_remembers_it() -> None:
    with stored_by(TwoStates()) as t:
        plan = t.change(drawn(Removes()))
        assert plan.reshaped["it"] == {"seen": "is removed: what is stored is kept, and not read"}
        idle_steps(t, 6)
        assert t.state("it", "a") == {"last": 3}
    with driven(t, Without()) as t:
        idle_steps(t, 6)
    with driven(t, TwoStates()) as t:
        assert t.state("it", "a")["seen"] == {"n1": 1, "n3": 3}
    with pytest.raises(SchemaChanged, match=r"'seen' .* is stored, and no longer declared"):
        driven(t, Without())


def test_all_state_of_a_computation_is_given_up_by_name() -> None:
    with stored_by(TwoStates()) as t:
        t.change(drawn(OnlyCounts()), forget=["it"])
        assert t.state("it", "a") == {"last": 0, "counts": {}}


def test_a_handler_cannot_use_what_was_removed() -> None:
    class Uses(Removes):
        def process_record(self, ctx: Any, record: hr.Record) -> None:
            self.seen["a"] = 1  # type: ignore[index]

    with pytest.raises(UserCodeError, match="was removed"):
        stored_by(Uses())


# -- wrong declarations ----------------------------------------------------------------------------


def test_two_states_cannot_be_stored_under_one_name() -> None:
    class Both(TwoStates):
        counts = hr.MapState(str, int, renamed_from="seen")

    with pytest.raises(PipelineError, match="are both stored as 'seen'"):
        drawn(Both())


def test_what_is_removed_cannot_be_what_something_was_renamed_from() -> None:
    class Both(TwoStates):
        seen = hr.Removed()  # type: ignore[assignment]
        counts = hr.MapState(str, int, renamed_from="seen")

    with pytest.raises(PipelineError, match="are both stored as 'seen'"):
        drawn(Both())


def test_an_old_name_is_a_name() -> None:
    with pytest.raises(PipelineError, match="renamed_from='a b' is not a name of an attribute"):
        hr.ValueState(int, renamed_from="a b")
