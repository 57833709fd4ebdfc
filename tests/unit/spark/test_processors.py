"""A StatefulProcessor on the inline runner: its life, its state, its timers, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import numpy as np
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

import headrace as hr
from headrace.errors import HeadraceError, PipelineError, UserCodeError

START = datetime(2024, 1, 1, tzinfo=UTC)
NOW_MS = int(START.timestamp() * 1000)


class Hit(msgspec.Struct):
    user: str
    n: int
    at: int = 0


class Processor(StatefulProcessor):
    """A processor whose handlers are functions, so that each test says what it does."""

    def __init__(
        self,
        init: Callable[[Any, Any], None],
        rows: Callable[..., Any],
        timer: Callable[..., Any] = lambda *_: (),
    ) -> None:
        self._init, self._rows, self._timer = init, rows, timer

    def init(self, handle: Any) -> None:
        self.handle = handle
        self._init(self, handle)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        return iter(self._rows(self, key, rows, timerValues) or ())

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        return iter(self._timer(self, key, timerValues, expiredTimerInfo) or ())

    def close(self) -> None:
        pass


def said(*words: Any) -> Row:
    return Row(what=" ".join(map(str, words)))


def driven(
    processor: StatefulProcessor, mode: str = "None", *, output: str = "what STRING", **more: Any
) -> Any:
    p = hr.Pipeline("t")
    source = hr.sources.Iterable(list, type=Hit, event_time="at")
    hits = p.inject("hits", source, watermark=hr.spark("0s"))
    made = hr.spark.stateful_processor(
        hits, "user", processor, output, "Update", mode, name="made", **more
    )
    p.sink("out", made, hr.sinks.Calls(lambda step, rows: None))
    return hr.testing.drive(p, clock=START)


def push(t: Any, *hits: Hit) -> None:
    t.push_many("hits", hits)


def seconds(n: float) -> int:
    return int(n * 1_000_000)


def words(t: Any) -> list[str]:
    return [row.value.what for row in t.outputs("made.rows", everything=True)]


def counts(self: Any, handle: Any) -> None:
    self.count = handle.getValueState("count", "n INT, last STRING")


def count(self: Any, key: Any, rows: Any, times: Any) -> Iterator[Row]:
    before = self.count.get()
    total = (before[0] if before else 0) + sum(row.n for row in rows)
    self.count.update((total, key[0]))
    yield said(key, total)


# -- state --------------------------------------------------------------------------------------


def test_state_outlasts_steps_and_crashes_and_is_seen_by_name() -> None:
    with driven(Processor(counts, count)) as t:
        push(t, Hit("ann", 3), Hit("ann", 4))
        t.step()
        t.crash()
        push(t, Hit("ann", 1), Hit("bob", 2))
        t.step()
        assert sorted(words(t)) == ["('ann',) 7", "('ann',) 8", "('bob',) 2"]
        (state,) = t.state("made", "ann").values()
        assert (state.n, state.last) == (8, "ann")


def test_attributes_last_for_a_step_only() -> None:
    def init(self: Any, handle: Any) -> None:
        self.seen = []

    def rows(self: Any, key: Any, rows: Any, times: Any) -> Iterator[Row]:
        self.seen += [row.n for row in rows]
        yield said(self.seen)

    with driven(Processor(init, rows)) as t:
        for n in (1, 2):
            push(t, Hit("ann", n))
            t.step()
        assert words(t) == ["[1]", "[2]"]


def test_what_state_returned_can_be_changed_without_changing_the_state() -> None:
    def init(self: Any, handle: Any) -> None:
        self.last = handle.getValueState("last", "xs ARRAY<INT>")

    def rows(self: Any, key: Any, rows: Any, times: Any) -> Iterator[Row]:
        for row in rows:
            if not self.last.exists():
                self.last.update(([row.n],))
            self.last.get()[0].append(99)
        yield said(self.last.get())

    with driven(Processor(init, rows)) as t:
        push(t, Hit("ann", 1))
        t.step()
        assert words(t) == ["([1],)"]


def test_maps_and_lists_hand_out_snapshots() -> None:
    def init(self: Any, handle: Any) -> None:
        self.of, self.all = (
            handle.getMapState("of", "k INT", "v INT"),
            handle.getListState("all", "v INT"),
        )

    def rows(self: Any, key: Any, rows: Any, times: Any) -> Iterator[Row]:
        for n in range(4):
            self.of.updateValue((n,), (10 * n,))
            self.all.appendValue((n,))
        for k in self.of.keys():
            self.of.removeKey(k)
        for v in self.all.get():
            self.all.put([v])
        yield said(self.of.exists(), list(self.all.get()), self.of.getValue((1,)))

    with driven(Processor(init, rows)) as t:
        push(t, Hit("ann", 1))
        t.step()
        assert words(t) == ["False [(3,)] None"]


def test_a_value_of_a_map_is_a_row_with_names() -> None:
    def init(self: Any, handle: Any) -> None:
        self.of = handle.getMapState("of", "k STRING", "name STRING, n INT")

    def rows(self: Any, key: Any, rows: Any, times: Any) -> Iterator[Row]:
        self.of.updateValue(("x",), ["y", 2])
        yield said(self.of.getValue(("x",))["name"], self.of.getValue(("x",)).n)

    with driven(Processor(init, rows)) as t:
        push(t, Hit("ann", 1))
        t.step()
        assert words(t) == ["y 2"]


def test_state_moves_with_its_key() -> None:
    with driven(Processor(counts, count)) as t:
        users = [f"u{n}" for n in range(40)]
        push(t, *(Hit(user, 1) for user in users))
        t.step()
        t.rescale(workers=3)
        push(t, *(Hit(user, 1) for user in users))
        t.run()
        assert sorted(words(t))[1::2] == sorted(f"('{user}',) 2" for user in users)


def test_state_with_a_time_to_live_ends_with_the_clock_and_reading_does_not_renew_it() -> None:
    def init(self: Any, handle: Any) -> None:
        self.last = handle.getValueState("last", "n INT", ttlDurationMs=10_000)

    def rows(self: Any, key: Any, rows: Any, times: Any) -> Iterator[Row]:
        found = self.last.get()
        for row in rows:
            if row.n:
                self.last.update((row.n,))
        yield said(found)

    with driven(Processor(init, rows), "ProcessingTime") as t:
        for at, n in ((0, 5), (9, 0), (10, 0), (11, 6), (20, 0)):
            t.clock(START + timedelta(seconds=at))
            push(t, Hit("ann", n))
            t.step()
        assert words(t) == ["None", "(5,)", "None", "None", "(6,)"]


# -- timers -------------------------------------------------------------------------------------


def timers(self: Any, key: Any, rows: Any, times: Any) -> Iterator[Row]:
    for row in rows:
        self.handle.registerTimer(row.n)
    yield said("set", list(self.handle.listTimers()))


def fired(self: Any, key: Any, times: Any, info: Any) -> Iterator[Row]:
    yield said(
        "fired",
        key.user,
        info.getExpiryTimeInMs() - NOW_MS,
        times.getCurrentProcessingTimeInMs() - NOW_MS,
    )


def nothing(self: Any, handle: Any) -> None:
    pass


def test_a_wall_timer_fires_when_the_clock_reaches_it() -> None:
    with driven(Processor(nothing, timers, fired), "processingTime") as t:
        push(t, Hit("ann", NOW_MS + 5_000), Hit("ann", NOW_MS + 5_000))
        t.step()
        t.clock(START + timedelta(seconds=4))
        t.run()
        t.clock(START + timedelta(seconds=6))
        t.run()
        assert words(t) == [f"set [{NOW_MS + 5_000}]", "fired ann 5000 6000"]


def test_a_timer_that_is_set_while_rows_are_processed_and_is_due_fires_in_the_same_step() -> None:
    with driven(Processor(nothing, timers, fired), "processingTime") as t:
        push(t, Hit("ann", NOW_MS - 1))
        t.step()
        assert words(t)[1:] == ["fired ann -1 0"]


def test_a_timer_that_a_timer_sets_fires_in_the_next_step() -> None:
    def again(self: Any, key: Any, times: Any, info: Any) -> Iterator[Row]:
        left = info.getExpiryTimeInMs()
        if left > 1_000:
            self.handle.registerTimer(left - 1)
        yield said("fired", left, list(self.handle.listTimers()))

    with driven(Processor(nothing, timers, again), "processingTime") as t:
        push(t, Hit("ann", 1_002))
        t.step()
        assert words(t)[1:] == ["fired 1002 [1001, 1002]"] or words(t)[1:] == [
            "fired 1002 [1002, 1001]"
        ]
        t.run()
        assert [w.split(" [")[0] for w in words(t)[1:]] == [
            "fired 1002",
            "fired 1001",
            "fired 1000",
        ]


def test_a_due_timer_that_another_one_deletes_still_fires() -> None:
    def delete(self: Any, key: Any, times: Any, info: Any) -> Iterator[Row]:
        for other in list(self.handle.listTimers()):
            self.handle.deleteTimer(other)
        yield said("fired", info.getExpiryTimeInMs(), list(self.handle.listTimers()))

    with driven(Processor(nothing, timers, delete), "processingTime") as t:
        push(t, Hit("ann", 1_000), Hit("ann", 2_000))
        t.run()
        assert words(t)[1:] == ["fired 1000 []", "fired 2000 []"]


def test_timers_of_all_keys_fire_in_the_order_of_their_times_after_all_rows() -> None:
    with driven(Processor(nothing, timers, fired), "processingTime") as t:
        push(t, *(Hit(user, n) for user in "abcdef" for n in (ord(user), 1_000 - ord(user))))
        t.step()
        times = [int(word.split()[2]) for word in words(t) if word.startswith("fired")]
        assert len(times) == 12


def test_an_event_timer_fires_once_the_watermark_has_reached_it() -> None:
    def rows(self: Any, key: Any, rows: Any, times: Any) -> Iterator[Row]:
        for row in rows:
            self.handle.registerTimer(row.at // 1_000 + 1_000)
        yield said("at", times.getCurrentWatermarkInMs())

    def timer(self: Any, key: Any, times: Any, info: Any) -> Iterator[Row]:
        yield said("fired", info.getExpiryTimeInMs(), times.getCurrentWatermarkInMs())

    with driven(Processor(nothing, rows, timer), "eventTime") as t:
        push(t, Hit("ann", 0, seconds(10)))
        t.step()
        push(t, Hit("ann", 0, seconds(12)))
        t.step()
        push(t, Hit("ann", 0, seconds(13)))
        t.step()
        assert words(t) == ["at 0", "at 10000", "at 12000", "fired 11000 12000"]
        t.step()  # Spark makes an empty batch here, too: its watermark has moved
        assert words(t)[4:] == ["fired 13000 13000"]
        assert t.step() is None


def test_a_timer_after_the_end_of_the_input_stays_pending_and_does_not_fail() -> None:
    found: list[list[int]] = []

    def begin(self: Any, key: Any, rows: Any, times: Any) -> None:
        self.handle.registerTimer(5)

    def again(self: Any, key: Any, times: Any, info: Any) -> Iterator[Row]:
        self.handle.registerTimer(times.getCurrentWatermarkInMs() + 1_000)
        found.append(list(self.handle.listTimers()))
        yield said("fired at", info.getExpiryTimeInMs())

    with driven(Processor(lambda *_: None, begin, again), "EventTime") as t:
        push(t, Hit("ann", 1, at=seconds(1)))
        t.step()
        t.end()
        t.run()
        assert words(t) == ["fired at 5"]
    assert len(found) == 1 and found[0][-1] == (2**63 - 1) // 1_000


# -- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize("ms", [2**63, -(2**63) - 1])
def test_a_timer_beyond_64_bits_is_refused(ms: int) -> None:
    def begin(self: Any, key: Any, rows: Any, times: Any) -> None:
        self.handle.registerTimer(ms)

    with driven(Processor(lambda *_: None, begin), "EventTime") as t:
        push(t, Hit("ann", 1))
        with pytest.raises(UserCodeError, match="beyond what the time of a timer can be"):
            t.step()


def test_an_unknown_time_mode_is_refused() -> None:
    with pytest.raises(PipelineError, match="STATEFUL_PROCESSOR_UNKNOWN_TIME_MODE"):
        driven(Processor(counts, count), "someTime")


def test_a_time_to_live_needs_processing_time() -> None:
    def init(self: Any, handle: Any) -> None:
        handle.getValueState("x", "n INT", 1_000)

    with pytest.raises(PipelineError, match="processingTime"):
        driven(Processor(init, count), "eventTime")


def test_one_name_for_two_states_is_refused() -> None:
    def init(self: Any, handle: Any) -> None:
        handle.getValueState("x", "n INT")
        handle.getListState("x", "n INT")

    with pytest.raises(PipelineError, match="declared twice"):
        driven(Processor(init, count))


def test_state_cannot_be_used_in_init() -> None:
    def init(self: Any, handle: Any) -> None:
        handle.getValueState("x", "n INT").get()

    with pytest.raises(Exception, match="INVALID_HANDLE_STATE"):
        driven(Processor(init, count))


@pytest.mark.parametrize(
    ("schema", "value", "why"),
    [
        ("n INT", (2**40,), "beyond"),
        ("n INT", (1.5,), "not of Spark's type int"),
        ("n INT", ("7",), "state 'x'.n: '7' is not of Spark's type int"),
        ("n TINYINT", (128.0,), "state 'x'.n: 128.0 is beyond Spark's type tinyint"),
        ("n BIGINT", (2.0**53 + 2,), "state 'x'.n: .* not of Spark's type bigint"),
        ("n INT", (float("inf"),), "not of Spark's type int"),
        ("m INT, s STRUCT<a: INT, b: INT>", (1, (2, "7")), "state 'x'.s.b: '7' is not"),
        ("l ARRAY<STRUCT<b: INT>>", ([("7",)],), "state 'x'.l.element.b: '7' is not"),
        ("n INT", (True,), "not of Spark's type int"),
        ("n DOUBLE", (2**53 + 1,), "would become"),
        ("n TIMESTAMP", ("2024-01-01",), "not of Spark's type timestamp"),
        ("n DECIMAL(3,1)", (1000,), "too many digits"),
        ("n INT", (1, 2), r"state 'x': \(1, 2\) has 2 fields"),
        ("n INT", 3, "state 'x': 'int' object is not iterable"),
        ("n INT", None, "not iterable"),
    ],
)
def test_what_spark_would_lose_without_a_word_is_refused(schema: str, value: Any, why: str) -> None:
    def init(self: Any, handle: Any) -> None:
        self.x = handle.getValueState("x", schema)

    def rows(self: Any, key: Any, rows: Any, times: Any) -> Iterator[Row]:
        self.x.update(value)
        yield said("kept", self.x.get())

    with driven(Processor(init, rows)) as t:
        push(t, Hit("ann", 1))
        with pytest.raises(UserCodeError, match=why) as caught:
            t.step()
        assert "computation 'made', key 'ann'" in caught.value.place


@pytest.mark.parametrize(
    ("schema", "value", "kept"),
    [
        ("n DOUBLE", (3,), (3.0,)),
        ("n STRING", (3,), ("3",)),
        ("n STRING", (True,), ("true",)),
        ("n FLOAT", (0.1,), (0.10000000149011612,)),
        ("n INT", (float("nan"),), (None,)),
        ("n INT", (9.0,), (9,)),  # (what pandas makes of 9 in a column with nulls)
        ("n TINYINT", (np.float32(-128),), (-128,)),
        ("n BIGINT", (2.0**53,), (2**53,)),
        ("n DECIMAL(5,2)", (7,), "(Decimal('7.00'),)"),
        ("a STRUCT<b: INT, c: STRING>", ((1, "x"),), "(Row(b=1, c='x'),)"),
        ("m MAP<STRING, INT>", ({"b": 1, "a": None},), ({"b": 1, "a": None},)),
    ],
)
def test_what_can_be_kept_without_loss_is_kept_as_spark_does(
    schema: str, value: Any, kept: Any
) -> None:
    def init(self: Any, handle: Any) -> None:
        self.x = handle.getValueState("x", schema)

    def rows(self: Any, key: Any, rows: Any, times: Any) -> Iterator[Row]:
        self.x.update(value)
        yield said(self.x.get())

    with driven(Processor(init, rows)) as t:
        push(t, Hit("ann", 1))
        t.step()
        assert words(t) == [str(kept)]


def test_an_empty_list_is_refused_as_in_spark() -> None:
    def init(self: Any, handle: Any) -> None:
        self.x = handle.getListState("x", "n INT")

    def rows(self: Any, key: Any, rows: Any, times: Any) -> None:
        self.x.put([])

    with driven(Processor(init, rows)) as t:
        push(t, Hit("ann", 1))
        with pytest.raises(UserCodeError, match="EMPTY_LIST_VALUE"):
            t.step()


def test_timers_need_a_time_mode() -> None:
    with driven(Processor(nothing, timers, fired)) as t:
        push(t, Hit("ann", 1))
        with pytest.raises(UserCodeError, match="INVALID_TIME_MODE"):
            t.step()


@pytest.mark.parametrize(
    ("row", "why"),
    [(("x",), "no Row with names"), (Row(what=3), "column 'what' is string"), (None, "no Row")],
)
def test_a_row_that_the_output_cannot_carry_is_refused_with_its_key(row: Any, why: str) -> None:
    with driven(Processor(nothing, lambda *_: [row])) as t:
        push(t, Hit("ann", 1))
        with pytest.raises(UserCodeError, match=why) as caught:
            t.step()
        assert "key 'ann'" in caught.value.place


def test_fields_of_rows_are_found_by_name_and_missing_ones_are_null() -> None:
    rows = [Row(b=1, a="x", more=2), Row(a="y")]
    with driven(Processor(nothing, lambda *_: rows), output="a STRING, b INT") as t:
        push(t, Hit("ann", 1))
        t.step()
        assert [(r.value.a, r.value.b) for r in t.outputs("made.rows", everything=True)] == [
            ("x", 1),
            ("y", None),
        ]


def test_a_handler_that_raises_is_undone_and_its_rows_become_dead_letters() -> None:
    def rows(self: Any, key: Any, rows: Any, times: Any) -> Iterator[Row]:
        found = list(count(self, key, rows, times))
        if self.count.get()[0] > 10:
            raise ValueError("too many")
        yield from found

    with driven(Processor(counts, rows), on_error="dead_letter") as t:
        push(t, Hit("ann", 5), Hit("bob", 8), Hit("bob", 9))
        t.step()
        push(t, Hit("bob", 1))
        t.step()
        assert sorted(words(t)) == ["('ann',) 5", "('bob',) 1"]
        letters = [row.value.value for row in t.outputs("made.dead_letter", everything=True)]
        assert sorted(letters) == ['{"user":"bob","n":8,"at":0}', '{"user":"bob","n":9,"at":0}']


def test_rows_of_a_frame_become_dead_letters_too() -> None:
    class Failing(StatefulProcessor):
        def init(self, handle: Any) -> None:
            pass

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            raise ValueError("no")

    with driven(Failing(), on_error="dead_letter", in_pandas=True) as t:
        push(t, Hit("ann", 5), Hit("ann", 6))
        t.step()
        letters = [row.value for row in t.outputs("made.dead_letter", everything=True)]
        assert [letter.value for letter in letters] == [
            '{"user":"ann","n":5,"at":0}',
            '{"user":"ann","n":6,"at":0}',
        ]
        assert letters[0].error == "ValueError: no"


def test_dead_letters_of_frames_hold_times_and_nulls_as_json_has_them() -> None:
    class Failing(StatefulProcessor):
        def init(self, handle: Any) -> None:
            pass

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            raise ValueError("no")

    class Timed(msgspec.Struct):
        user: str
        when: datetime | None
        n: int | None
        at: int = 0

    p = hr.Pipeline("t")
    source = hr.sources.Iterable(list, type=Timed, event_time="at")
    hr.spark.stateful_processor(
        p.inject("hits", source),
        "user",
        Failing(),
        "what STRING",
        "Update",
        "None",
        name="made",
        in_pandas=True,
        on_error="dead_letter",
    )
    with hr.testing.drive(p, clock=START) as t:
        t.push_many("hits", [Timed("ann", START, 5), Timed("ann", None, None)])
        t.step()
        letters = [row.value.value for row in t.outputs("made.dead_letter")]
    assert letters == [
        '{"user":"ann","when":"2024-01-01T00:00:00","n":5.0,"at":0}',
        '{"user":"ann","when":null,"n":"NaN","at":0}',
    ]


def test_reading_state_with_decimals_is_no_change() -> None:
    def init(self: Any, handle: Any) -> None:
        self.x = handle.getValueState("x", "n DECIMAL(5,2)")

    def rows(self: Any, key: Any, rows: Any, times: Any) -> Iterator[Row]:
        if not self.x.exists():
            self.x.update((1,))
        yield said(self.x.get())

    with driven(Processor(init, rows)) as t:
        for _ in range(2):
            push(t, Hit("ann", 1))
            summary = t.step()
        assert words(t) == ["(Decimal('1.00'),)"] * 2
        assert summary is not None


def test_a_schema_that_cannot_be_read_is_refused_with_its_state() -> None:
    def init(self: Any, handle: Any) -> None:
        handle.getValueState("x", "n WHATEVER<")

    with pytest.raises(HeadraceError, match="schema 'n WHATEVER<' of state 'x'"):
        driven(Processor(init, count))


def late_by(ms: int) -> Processor:
    def rows(self: Any, key: Any, rows: Any, times: Any) -> Iterator[Row]:
        for row in rows:
            yield Row(at=datetime.fromtimestamp(row.at / 1e6 - ms / 1e3, UTC), what=str(row.n))

    return Processor(nothing, rows)


def test_a_column_of_the_output_is_its_event_time_for_what_comes_after_it() -> None:
    with driven(late_by(500), output="at TIMESTAMP, what STRING", eventTimeColumnName="at") as t:
        push(t, Hit("ann", 1, seconds(10)), Hit("ann", 2, seconds(11)))
        t.step()
        found = t.outputs("made.rows", everything=True)
        assert [row.timestamp_us for row in found] == [seconds(9.5), seconds(10.5)]


def test_a_row_whose_event_time_is_late_already_is_refused() -> None:
    with driven(
        late_by(5_000), "eventTime", output="at TIMESTAMP, what STRING", eventTimeColumnName="at"
    ) as t:
        push(t, Hit("ann", 1, seconds(20)))
        t.run()
        push(t, Hit("ann", 2, seconds(21)))
        with pytest.raises(UserCodeError, match="which is late already"):
            t.step()


def test_in_pandas_a_key_gets_one_frame_and_only_keys_with_nulls_get_floats() -> None:
    import pandas as pd

    class Frames(StatefulProcessor):
        def init(self, handle: Any) -> None:
            pass

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            (frame,) = rows
            said = f"{key[0]} {frame['n'].dtype} {list(frame.index)} {frame['n'].tolist()}"
            frame["more"] = 1
            yield pd.DataFrame({"other": [0], "what": [said]})
            yield pd.DataFrame({"what": []})

    class Maybe(msgspec.Struct):
        user: str
        n: int | None
        at: int = 0

    p = hr.Pipeline("t")
    source = hr.sources.Iterable(list, type=Maybe, event_time="at")
    made = hr.spark.stateful_processor(
        p.inject("hits", source),
        "user",
        Frames(),
        "what STRING",
        "Update",
        "None",
        name="made",
        in_pandas=True,
    )
    p.sink("out", made, hr.sinks.Calls(lambda step, rows: None))
    with hr.testing.drive(p) as t:
        t.push_many("hits", [Maybe("ann", 1), Maybe("bob", None), Maybe("ann", 2), Maybe("bob", 3)])
        t.step()
        assert sorted(words(t)) == ["ann int64 [0, 1] [1, 2]", "bob float64 [0, 1] [nan, 3.0]"]
