"""NEXMark's events are what the model says, and the same in whatever parts they are made."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import PipelineError
from headrace.nexmark.bids import channels
from headrace.nexmark.draws import Draws
from headrace.nexmark.events import columns_of, read, schema_of
from headrace.nexmark.timeline import Kind, Timeline
from tests.unit.nexmark import plain

ONE_KIND = [Kind.PERSON, Kind.AUCTION, Kind.BID]
#: What the model says of a text's mean length, and how far it may be from it.
LENGTHS = {
    (Kind.PERSON, "extra"): (137, 27),
    (Kind.AUCTION, "item_name"): (11, 11),
    (Kind.AUCTION, "description"): (51, 51),
    (Kind.AUCTION, "extra"): (382, 76),
    (Kind.BID, "extra"): (68, 14),
}


def made(timeline: Timeline, kind: Kind, first: int, last: int, *names: str) -> pa.Table:
    columns = columns_of(kind, names or None)
    empty = pa.schema([schema_of(kind).field(name) for name in columns]).empty_table()
    return pa.concat_tables([empty, *read(timeline, kind, first, last, columns)])


@settings(max_examples=25)
@given(
    st.integers(0, 3_000),
    st.lists(st.integers(0, 700), max_size=4),
    st.sampled_from([1, 7, 50, 128]),
)
def test_a_range_is_the_same_in_whatever_parts_it_is_made(
    first: int, lengths: list[int], disorder: int
) -> None:
    timeline = Timeline(disorder=disorder, seed=5)
    for kind in Kind:
        parts, at = [], first
        for length in lengths:
            parts.append(made(timeline, kind, at, at + length))
            at += length
        whole = made(timeline, kind, first, at)
        assert pa.concat_tables([*parts, whole.slice(0, 0)]).equals(whole)


@settings(max_examples=25)
@given(st.integers(0, 2_500), st.sampled_from([None, 2_500]), st.sampled_from([1, 3, 64, 1_000]))
def test_events_arrive_in_the_order_that_the_model_says(
    first: int, events: int | None, disorder: int
) -> None:
    timeline = Timeline(events=events, disorder=disorder)
    expected = plain.arrivals(2_500 if events else 4_000, disorder)[first:2_500]
    assert timeline.arrivals(first, 2_500).tolist() == expected
    assert made(timeline, Kind.EVENT, first, 2_500, "event")["event"].to_pylist() == expected
    of_kinds = Counter[int]()
    known = plain.kinds(4_000)
    for kind in ONE_KIND:
        numbers = made(timeline, kind, first, 2_500, "event")["event"].to_pylist()
        assert numbers == [number for number in expected if known[number][0] == kind]
        of_kinds.update(numbers)
    assert of_kinds == Counter(expected)


@pytest.mark.parametrize("disorder", [1, 64])
def test_nothing_comes_before_what_the_source_promises(disorder: int) -> None:
    timeline = Timeline(disorder=disorder)
    times = timeline.times_us(timeline.arrivals(0, 5_000))
    for arrived in range(0, 5_000, 7):
        assert times[arrived:].min() >= timeline.promise_us(arrived)
        assert timeline.promise_us(arrived) >= timeline.times_us(max(arrived - disorder, 0))


@given(st.integers(0, 10**9), st.integers(1, 10**8))
def test_times_are_exact_at_any_rate(number: int, rate: int) -> None:
    assert Timeline(rate=rate).times_us(number) == plain.time_us(number, rate)


@pytest.mark.parametrize("in_flight", [1, 100, 5_000])
def test_kinds_ids_and_references_are_as_the_model_says(in_flight: int) -> None:
    timeline, count = Timeline(in_flight=in_flight), 7_000
    rows = {
        row["event"]: (kind, row)
        for kind in ONE_KIND
        for row in made(timeline, kind, 0, count).to_pylist()
    }
    seen, problems = plain.Seen(), []
    for number, (kind, own_id) in enumerate(plain.kinds(count)):
        found, row = rows[number]
        assert found == kind and row.get("id") == own_id
        seen.add(kind)
        if kind == "auction":
            problems.append(seen.person_problem(row["seller"], 0))
            assert 10 <= row["category"] < 15 and row["reserve"] > row["initial_bid"] >= 100
            assert row["date_time"] < row["expires"]
        if kind == "bid":
            problems.append(seen.person_problem(row["bidder"], 1))
            problems.append(seen.auction_problem(row["auction"], in_flight))
    assert not any(problems), [problem for problem in problems if problem][:5]


def test_what_is_hot_is_so_as_often_as_is_said() -> None:
    timeline = Timeline(hot_sellers=10, hot_auctions=2, hot_bidders=4)
    bids = made(timeline, Kind.BID, 50_000, 150_000, "event", "auction", "bidder")
    auctions = made(timeline, Kind.AUCTION, 50_000, 1_050_000, "event", "seller")
    newest = [number // 50 * 3 + 2 for number in bids["event"].to_pylist()]
    hot = [
        a - 1_000 == n // 100 * 100
        for a, n in zip(bids["auction"].to_pylist(), newest, strict=True)
    ]
    assert sum(hot) / len(hot) == pytest.approx(0.5, abs=0.02)
    bidders = zip(bids["bidder"].to_pylist(), bids["event"].to_pylist(), strict=True)
    hot = [bidder - 1_001 == number // 5_000 * 100 for bidder, number in bidders]
    assert sum(hot) / len(hot) == pytest.approx(0.75, abs=0.02)
    sellers = zip(auctions["seller"].to_pylist(), auctions["event"].to_pylist(), strict=True)
    hot = [seller - 1_000 == number // 5_000 * 100 for seller, number in sellers]
    assert sum(hot) / len(hot) == pytest.approx(0.9, abs=0.01)


def test_prices_are_as_often_below_ten_as_above_a_hundred_times_as_much() -> None:
    prices = made(Timeline(), Kind.BID, 0, 300_000, "price")["price"].to_numpy()
    assert prices.min() >= 100 and prices.max() <= 100_000_000
    for decade in range(6):
        share = ((prices >= 10 ** (2 + decade)) & (prices < 10 ** (3 + decade))).mean()
        assert share == pytest.approx(1 / 6, abs=0.005)


@pytest.mark.parametrize("in_flight", [10, 100])
def test_so_many_auctions_are_open_at_a_time(in_flight: int) -> None:
    auctions = made(Timeline(in_flight=in_flight), Kind.AUCTION, 0, 200_000, "date_time", "expires")
    begun = auctions["date_time"].cast(pa.int64()).to_numpy()
    ended = auctions["expires"].cast(pa.int64()).to_numpy()
    at = begun[len(begun) // 2]
    open_then = ((begun <= at) & (ended > at)).sum()
    assert in_flight / 2 < open_then < in_flight * 2
    assert (ended - begun).mean() == pytest.approx(in_flight * 50 / 3 * 100, rel=0.05)


def test_texts_are_as_long_as_the_model_says() -> None:
    for (kind, name), (mean, spread) in LENGTHS.items():
        texts = made(Timeline(), kind, 0, 100_000, name)[name]
        lengths = pc.binary_length(texts).to_numpy()
        assert mean - spread <= lengths.min() and lengths.max() <= mean + spread
        assert lengths.mean() == pytest.approx(mean, rel=0.05)
        letters = set("".join(texts.slice(0, 300).to_pylist()))
        assert letters - {" "} == set("abcdefghijklmnopqrstuvwxyz")
        assert (" " in letters) == (name in ("item_name", "description"))


def test_channels_have_pages_of_their_own() -> None:
    bids = made(Timeline(), Kind.BID, 0, 60_000, "channel", "url").to_pylist()
    hot = [bid for bid in bids if not bid["channel"].startswith("channel-")]
    assert {bid["channel"] for bid in hot} == {"Google", "Facebook", "Baidu", "Apple"}
    assert len(hot) / len(bids) == pytest.approx(0.5, abs=0.02)
    assert not any("channel_id" in bid["url"] for bid in hot)
    assert len({(bid["channel"], bid["url"]) for bid in bids}) == len(
        {bid["channel"] for bid in bids}
    )
    silent = [bid for bid in bids if "channel_id" not in bid["url"]]
    assert (len(silent) - len(hot)) / len(bids) == pytest.approx(0.05, abs=0.01)
    found = channels(0)
    said = dict(zip(found.names.to_pylist(), found.urls.to_pylist(), strict=True))
    turned = int(
        "101" + "0" * 29, 2
    )  # the bits of 5, the other way round: below 0 as a signed number
    assert said["channel-5"].endswith(f"channel_id={2**32 - turned}")
    assert said["channel-4"].endswith(f"channel_id={int('001' + '0' * 29, 2)}")


def test_another_seed_gives_other_contents_at_the_same_times() -> None:
    one, other = (made(Timeline(seed=seed), Kind.BID, 0, 5_000) for seed in (1, 2))
    assert one["event"].equals(other["event"]) and one["date_time"].equals(other["date_time"])
    for name in ("auction", "bidder", "price", "channel", "extra"):
        assert not one[name].equals(other[name])


def test_seeds_of_any_size_and_sign_give_contents_of_their_own() -> None:
    seeds = [0, -1, -2, -1_000, 2**53, 2**53 + 1, 2**63, 2**63 + 1]
    drawn = {Draws(seed).bits("price", 0, 8).tobytes() for seed in seeds}
    assert len(drawn) == len(seeds)


def test_no_two_fields_are_drawn_alike() -> None:
    auctions = made(
        Timeline(), Kind.AUCTION, 0, 20_000, "initial_bid", "reserve", "category", "seller"
    )
    apart = pc.subtract(auctions["reserve"], auctions["initial_bid"])
    assert not apart.equals(auctions["initial_bid"])


#: What the first 20 000 events of the default timeline are, once and for all: the hash of all columns.
GOLDEN = {
    Kind.PERSON: "ece06bfe7553db2c2dbb95a5dc3bfa89",
    Kind.AUCTION: "f92a908f704f86d2f143540dcac636ec",
    Kind.BID: "34d20c22c20ab0d9a8ea094d65c3d383",
}


def digest(table: pa.Table) -> str:
    """Return a hash of a table's rows, as JSON would write them."""
    return hashlib.sha256(repr(table.to_pylist()).encode()).hexdigest()[:32]


def with_plain_times(table: pa.Table) -> pa.Table:
    """Return a table with its times as microseconds since 1970."""
    for name in {"date_time", "expires"} & {*table.column_names}:
        column = table[name].cast(pa.int64())
        table = table.set_column(table.column_names.index(name), name, column)
    return table


@pytest.mark.parametrize("kind", ONE_KIND)
def test_the_events_are_those_that_they_have_always_been(kind: Kind) -> None:
    assert digest(with_plain_times(made(Timeline(), kind, 0, 20_000))) == GOLDEN[kind]


#: With every knob another, and far along the timeline.
OTHER = Timeline(
    seed=-7,
    rate=333,
    in_flight=17,
    hot_sellers=3,
    hot_auctions=5,
    hot_bidders=9,
    disorder=700,
    base_us=1_000_000_000_000,
)
FAR = 3_000_000_000
GOLDEN_FAR = {
    Kind.PERSON: "4ffdd56bf81e81119b07865dfa56b9c0",
    Kind.AUCTION: "bacb7f4f7b30415428496ff210595779",
    Kind.BID: "c52ad48d4050bf8bb7f77e4b3e8ca93d",
}


@pytest.mark.parametrize("kind", ONE_KIND)
def test_so_are_those_of_other_knobs_and_far_along_the_timeline(kind: Kind) -> None:
    table = made(OTHER, kind, FAR, FAR + 5_000)
    assert digest(with_plain_times(table)) == GOLDEN_FAR[kind]


#: The first events as they are read, to see in which field another differs; and how long ``extra`` is.
FIRST: dict[Kind, dict[str, object]] = {
    Kind.PERSON: {
        "event": 0,
        "id": 1000,
        "name": "John Abrams",
        "email_address": "xiedoj@apkb.com",
        "credit_card": "3244 5132 7283 6955",
        "city": "Redmond",
        "state": "ID",
        "date_time": 1436918400000000,
        "extra": 122,
    },
    Kind.AUCTION: {
        "event": 1,
        "id": 1000,
        "item_name": "psw",
        "description": "weczwkqkmhynudp",
        "initial_bid": 1208,
        "reserve": 1923,
        "date_time": 1436918400000100,
        "expires": 1436918400228059,
        "seller": 1000,
        "category": 13,
        "extra": 387,
    },
    Kind.BID: {
        "event": 4,
        "auction": 1009,
        "bidder": 1001,
        "price": 30724,
        "channel": "channel-8404",
        "url": "https://www.nexmark.com/hhbj/ifjp/bgdj/item.htm?query=1&channel_id=721682432",
        "date_time": 1436918400000400,
        "extra": 63,
    },
}


@pytest.mark.parametrize("kind", ONE_KIND)
def test_the_first_of_a_kind_is_the_one_that_it_has_always_been(kind: Kind) -> None:
    first = with_plain_times(made(Timeline(), kind, 0, 50)).to_pylist()[0]
    assert {**first, "extra": len(first["extra"])} == FIRST[kind]


def test_all_kinds_in_one_are_the_kinds_by_themselves() -> None:
    together = made(Timeline(disorder=64), Kind.EVENT, 100, 5_000)
    for number, kind in enumerate(ONE_KIND):
        alone = made(Timeline(disorder=64), kind, 100, 5_000)
        rows = together.filter(pc.equal(together["event_type"], number))
        assert rows["event"].equals(alone["event"]) and rows["date_time"].equals(alone["date_time"])
        for name in set(alone.column_names) - {"event", "date_time"}:
            assert pc.struct_field(rows[str(kind)], name).equals(alone[name])
        others = together.filter(pc.not_equal(together["event_type"], number))
        assert others[str(kind)].null_count == others.num_rows


@pytest.mark.parametrize(
    "knobs",
    [
        {"rate": 0},
        {"disorder": 1906},
        {"events": -1},
        {"in_flight": 0},
        {"rate": 10**13},
        {"base_us": 2**63},
        *({name: wrong} for name in Timeline.__struct_fields__ for wrong in ("x", 10.0)),
        *({name: None} for name in Timeline.__struct_fields__ if name != "events"),
    ],
)
def test_knobs_that_cannot_be_are_refused_by_name(knobs: dict[str, Any]) -> None:
    with pytest.raises(PipelineError, match=f"nexmark: .*{next(iter(knobs))}=") as refused:
        Timeline(**knobs)
    assert refused.value.remedy


def test_a_column_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(PipelineError, match="no column 'colour'") as refused:
        columns_of(Kind.BID, ["colour"])
    assert "channel" in refused.value.remedy
