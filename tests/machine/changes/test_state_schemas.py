"""The shape of stored state changes: what adds passes, what is upgraded is read so, all else is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.coordinator.pipeline_compatibility import as_noted, check_schema, merged_schema
from headrace.errors import PipelineError, SchemaChanged, UserCodeError
from headrace.testing import Harness, drive

SETTINGS = hr.Settings(slices=4)


class Item(msgspec.Struct, frozen=True):
    key: str
    n: int
    at: int = 0


class Seen(msgspec.Struct):
    n: int


class SeenMore(msgspec.Struct):
    n: int
    most: int = -1


class SeenBoth(msgspec.Struct):
    total: float
    most: int


class First(hr.Computation):
    """Keeps values of all kinds."""

    seen = hr.ValueState(Seen)
    each = hr.ListState(int)
    by = hr.MapState(str, int)
    held = hr.PerWorker(int, default=0, merge=int.__add__)
    ticks = hr.Timer(hr.EVENT_TIME)

    def process_record(self, ctx: Any, record: hr.Record) -> None:
        n = record.value.n
        if n < 0:
            return  # (looks, and changes nothing)
        self.seen.value = Seen(n)
        self.each.append(n)
        self.by[f"n{n}"] = n
        self.held.value += n
        self.ticks.set(10**15)

    def process_timer(self, ctx: Any, timer: hr.Fired) -> None:
        """Never comes."""


class Added(First):
    """The same with what passes by itself."""

    seen = hr.ValueState(SeenMore)  # type: ignore[assignment]
    each = hr.ListState(int | None)  # type: ignore[assignment]

    def process_record(self, ctx: Any, record: hr.Record) -> None:
        if record.value.n >= 0:
            self.seen.value = SeenMore(record.value.n, record.value.n)
            self.each.append(None)


def both(old: Any) -> SeenBoth:
    return SeenBoth(float(old["n"]), old.get("most", -1))


class Upgraded(First):
    """The same with all that has values upgraded."""

    seen = hr.ValueState(SeenBoth, version=2, upgrade={1: both})  # type: ignore[assignment]
    each = hr.ListState(str, version=2, upgrade={1: (int, str)})  # type: ignore[assignment]
    by = hr.MapState(str, str, version=3, upgrade={1: lambda n: f"was {n}", 2: str})  # type: ignore[assignment]
    held = hr.PerWorker(  # type: ignore[assignment]
        str, default="", merge=str.__add__, version=2, upgrade={1: lambda n: f"{n} before, "}
    )

    def process_record(self, ctx: Any, record: hr.Record) -> None:
        n = record.value.n
        if n >= 0:
            self.seen.value = SeenBoth((self.seen.value or SeenBoth(0, 0)).total + n, n)
            self.each.append(str(n))
            self.by[f"n{n}"] = str(n)
            self.held.value += f"{n} now, "


def drawn(computation: Any) -> hr.Pipeline:
    pipeline = hr.Pipeline("reshaped")
    items = pipeline.inject("items", hr.sources.Iterable([], Item, event_time="at"))
    pipeline.compute("it", computation, keys={items: "key"})
    return pipeline


def driven(t: Harness, computation: Any) -> Harness:
    """Start again with other code."""
    t.resume(pipeline=drawn(computation))
    return t


def push(t: Harness, *items: tuple[str, int]) -> None:
    t.push_many("items", [Item(*item) for item in items])
    t.run()


def stored_by(computation: Any, *items: tuple[str, int]) -> Harness:
    t = drive(drawn(computation), settings=SETTINGS)
    push(t, *(items or (("a", 1), ("b", 2), ("a", 3))))
    return t


def idle_steps(t: Harness, steps: int) -> None:
    """Make steps in which another key works, so that every slice is written again."""
    for _ in range(steps):
        push(t, ("other", 7))


def test_an_added_field_with_a_default_and_an_added_member_of_a_union_pass() -> None:
    store = stored_by(First())
    with driven(store, Added()) as t:
        assert t.state("it", "a") == {
            "seen": SeenMore(3, -1),
            "each": [1, 3],
            "by": {"n1": 1, "n3": 3},
        }
        push(t, ("a", 5))
        assert t.state("it", "a")["seen"] == SeenMore(5, 5)
        assert t.state("it", "a")["each"] == [1, 3, None]
        assert t.state("it", "b")["seen"] == SeenMore(2, -1)
        assert len(t.timers("it", "b")) == 1


def test_code_from_before_what_passed_is_refused_with_the_difference() -> None:
    store = stored_by(First())
    with driven(store, Added()) as t:
        push(t, ("a", 5))
    with pytest.raises(SchemaChanged, match="field 'most' was removed") as caught:
        driven(store, First())
    assert "'each' was list int | None, is list int: None was allowed, is not" in str(caught.value)
    assert "'seen' was value SeenMore(n: int, most: int = -1), is value Seen(n: int)" in str(
        caught.value
    )


@pytest.mark.parametrize("steps", [0, 6])
def test_rows_of_older_versions_are_upgraded_when_they_are_read_or_written_in_a_slice(
    steps: int,
) -> None:
    store = stored_by(First())
    with driven(store, Upgraded()) as t:
        idle_steps(t, steps)
        assert t.state("it", "b") == {
            "seen": SeenBoth(2.0, -1),
            "each": ["2"],
            "by": {"n2": "was 2"},
        }
        push(t, ("a", 5))
        assert t.state("it", "a") == {
            "seen": SeenBoth(8.0, 5),
            "each": ["1", "3", "5"],
            "by": {"n1": "was 1", "n3": "was 3", "n5": "5"},
        }
        t.crash()
        t.resume()
        assert t.state("it", "a")["each"] == ["1", "3", "5"]
        held = sorted(value["held"] for value in t.per_worker("it").values())
        assert sum(int(text.split(" before")[0]) for text in held if "before" in text) == 6
        assert sum("5 now" in text for text in held) == 1


@pytest.mark.parametrize("steps", [0, 6])
def test_state_moves_and_is_upgraded_as_it_would_be_where_it_was(steps: int) -> None:
    store = stored_by(First(), *((f"k{n}", n) for n in range(50)))
    with driven(store, Upgraded()) as t:
        idle_steps(t, steps)
        move = t.rescale(workers=5, strategy=hr.batched(4))
        push(t, ("k3", 100))
        move.wait()
        push(t, ("k3", 100))
        found = {key: t.state("it", key)["seen"] for key in t.keys("it") if key.startswith("k")}
    assert found.pop("k3") == SeenBoth(203.0, 100)
    assert found == {f"k{n}": SeenBoth(float(n), -1) for n in range(50) if n != 3}


def test_when_every_slice_was_written_again_the_upgrade_may_go() -> None:
    store = stored_by(First())

    class Later(Upgraded):
        seen = hr.ValueState(SeenBoth, version=2)  # type: ignore[assignment]
        each = hr.ListState(str, version=2)  # type: ignore[assignment]
        by = hr.MapState(str, str, version=3)  # type: ignore[assignment]

    with driven(store, Upgraded()) as t:
        idle_steps(t, 1)
    with pytest.raises(SchemaChanged, match="there may be rows of version 1, and no upgrade"):
        driven(store, Later())
    with driven(store, Upgraded()) as t:
        idle_steps(t, 8)
    with driven(store, Upgraded()):
        """Begins once more, and notes that nothing is left."""
    with driven(store, Later()) as t:
        assert t.state("it", "b")["seen"] == SeenBoth(2.0, -1)


def test_older_code_than_what_was_stored_is_refused() -> None:
    store = stored_by(First())
    with driven(store, Upgraded()) as t:
        push(t, ("a", 5))
    with pytest.raises(SchemaChanged, match="stored as version 2, and the code's is 1") as caught:
        driven(store, First())
    assert "run the code that wrote it, or newer code" in str(caught.value)


def failing(old: Any) -> Any:
    if old["n"] == 2:
        raise ValueError("two is too much")
    return both(old)


class Failing(Upgraded):
    seen = hr.ValueState(SeenBoth, version=2, upgrade={1: failing})  # type: ignore[assignment]


class WrongType(Upgraded):
    seen = hr.ValueState(SeenBoth, version=2, upgrade={1: lambda old: "x"})  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("computation", "said"),
    [(Failing(), "two is too much"), (WrongType(), "Expected `object`, got `str`")],
)
def test_an_upgrade_that_fails_is_the_users_error_with_key_state_versions_and_line(
    computation: Any, said: str
) -> None:
    store = stored_by(First())
    with pytest.raises(UserCodeError, match=said) as caught, driven(store, computation) as t:
        push(t, ("b", 1), ("a", 1))
    text = str(caught.value)
    assert "the upgrade from version 1 to 2 failed" in text
    assert "computation 'it', state 'seen', key '" in text
    assert computation is not Failing or 'raise ValueError("two is too much")' in text
    with driven(store, Upgraded()) as t:
        assert t.state("it", "b")["seen"] == SeenBoth(2.0, -1)


def test_rows_of_a_version_that_is_given_up_are_not_there() -> None:
    class Anew(Upgraded):
        seen = hr.ValueState(SeenBoth, version=2, upgrade={1: None})  # type: ignore[assignment]
        each = hr.ListState(str, version=2, upgrade={1: None})  # type: ignore[assignment]

    store = stored_by(First())
    with driven(store, Anew()) as t:
        assert t.state("it", "b") == {"seen": None, "each": [], "by": {"n2": "was 2"}}
        push(t, ("a", 5))
        idle_steps(t, 6)
        assert t.state("it", "a")["each"] == ["5"]
        assert t.state("it", "a")["seen"] == SeenBoth(5.0, 5)


def test_state_that_no_code_declared_for_some_time_is_upgraded_when_it_is_declared_again() -> None:
    class Without(First):
        seen = hr.Removed()  # type: ignore[assignment]

        def process_record(self, ctx: Any, record: hr.Record) -> None:
            self.each.append(record.value.n)

    store = stored_by(First())
    with driven(store, Without()) as t:
        idle_steps(t, 6)
    with driven(store, Upgraded()) as t:
        push(t, ("a", 5))
    upgraded_without = type(
        "UpgradedWithout", (Upgraded,), {"seen": hr.Removed(), "process_record": _none}
    )
    with driven(store, upgraded_without()) as t:
        idle_steps(t, 10)
    with driven(store, upgraded_without()) as t:
        idle_steps(t, 10)
    with driven(store, Upgraded()) as t:
        assert t.state("it", "a")["seen"] == SeenBoth(8.0, 5)
        assert t.state("it", "b")["seen"] == SeenBoth(2.0, -1)


def _none(self: Any, ctx: Any, record: hr.Record) -> None:
    """Does nothing."""


def test_a_change_of_the_running_pipeline_upgrades_too_and_says_what_becomes_of_state() -> None:
    with stored_by(First(), ("a", 1), ("b", 2)) as t:
        plan = t.change(drawn(Upgraded()))
        assert plan.reshaped["it"]["seen"] == "upgraded from version 1 as it is read"
        push(t, ("a", 5))
        assert t.state("it", "a")["seen"] == SeenBoth(6.0, 5)
        with pytest.raises(SchemaChanged, match="stored as version 2"):
            t.change(drawn(First()))
        assert t.state("it", "b")["seen"] == SeenBoth(2.0, -1)


def test_code_does_not_change_the_shape_of_what_is_still_to_be_computed_again() -> None:
    class Light(hr.Computation):
        seen = hr.ValueState(int, default=0)
        deterministic = True

        def process_record(self, ctx: Any, record: hr.Record) -> None:
            self.seen.value += record.value.n

    class Nullable(Light):
        seen = hr.ValueState(int | None, default=0)  # type: ignore[assignment]

    class Doubled(Light):
        seen = hr.ValueState(int, default=0, version=2, upgrade={1: lambda n: 2 * n})

    uncheckpointed = msgspec.structs.replace(SETTINGS, checkpoint_steps=8)
    with drive(drawn(Light()), settings=uncheckpointed) as t:
        push(t, ("a", 1))
        push(t, ("b", 2))
        t.crash()
        for computation in (Nullable(), Doubled()):
            with pytest.raises(SchemaChanged, match="computed by another topology"):
                t.resume(pipeline=drawn(computation))
        t.crash()
        t.resume(pipeline=drawn(Light()))
        t.change(drawn(Doubled()))
        push(t, ("a", 5))
        t.change(drawn(Doubled()))
        assert (t.state("it", "a"), t.state("it", "b")) == ({"seen": 7}, {"seen": 4})


def test_storage_that_knows_a_shape_by_its_digest_only_opens_if_it_is_the_same() -> None:
    class OtherFields(First):
        seen = hr.ValueState(SeenMore)  # type: ignore[assignment]

    wanted = drawn(First()).declared_schema()
    stored: Any = msgspec.json.decode(msgspec.json.encode(wanted))
    del stored["computations"]["it"]["shapes"]
    check_schema(stored, wanted)
    with pytest.raises(SchemaChanged, match="the old shape is only known by its digest"):
        check_schema(stored, drawn(OtherFields()).declared_schema())
    check_schema(stored, drawn(Upgraded()).declared_schema())
    assert as_noted(merged_schema(stored, wanted), stored) == merged_schema(stored, stored) | {
        "computations": stored["computations"]
    }, "what older versions of Headrace have begun is gone on with"

    class OtherOld(First):
        seen = hr.ValueState(SeenBoth, version=2, upgrade={1: (SeenMore, both)})  # type: ignore[assignment]

    with pytest.raises(SchemaChanged, match="only known by its digest, which differs"):
        check_schema(stored, drawn(OtherOld()).declared_schema())


def test_an_upgrade_that_reads_another_type_than_was_stored_is_refused() -> None:
    class Wrong(First):
        each = hr.ListState(str, version=2, upgrade={1: (str, str)})  # type: ignore[assignment]

    with pytest.raises(SchemaChanged, match="not what their upgrade reads: was int, is str"):
        driven(stored_by(First()), Wrong())


def test_the_type_of_a_maps_keys_cannot_change() -> None:
    class Wrong(First):
        by = hr.MapState(int, int, version=2, upgrade={1: None})  # type: ignore[assignment]

    with pytest.raises(SchemaChanged, match="a map's keys cannot change, here from str to int"):
        driven(stored_by(First()), Wrong())


@pytest.mark.parametrize(
    "options",
    [{"version": 0}, {"version": "2"}, {"upgrade": {1: str}}, {"version": 2, "upgrade": {1: 3}}],
)
def test_versions_that_cannot_be_are_refused_where_they_are_declared(options: Any) -> None:
    with pytest.raises(PipelineError):
        hr.ValueState(int, **options)


def test_manifests_remember_shapes_in_few_bytes() -> None:
    head = stored_by(First()).current()
    shapes = head.stored_schema["computations"]["it"]["shapes"]
    assert shapes["seen"] == {
        "kind": "value",
        "type": {"is": "record", "name": "Seen", "fields": [{"name": "n", "of": "int"}]},
    }
    assert len(msgspec.json.encode(shapes)) < 400
