"""What a source offers has as many bytes as it says, and no more than a step may take."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.sources.iterables import Iterable

KIB = 1 << 10


class Wide(msgspec.Struct):
    """A record of any width."""

    name: str
    at: int
    body: bytes


def of_parquet(folder: Path, records: list[Wide], *, alike: bool) -> Any:
    table = pa.table(
        {
            "name": [record.name for record in records],
            "at": [record.at for record in records],
            "body": [record.body for record in records],
            "unread": [bytes(50) for _ in records],
        }
    )
    pq.write_table(table, folder / "wide.parquet", row_group_size=100, use_dictionary=alike)
    return hr.sources.Files(str(folder / "*.parquet"), type=Wide, event_time="at")


def offered(source: Any, limit: hr.Limit) -> list[tuple[int, int, int]]:
    """Return rows, bytes as they are read, and bytes as the source says, of each offer."""
    found = []
    position = source.start()
    while (offer := source.offer(position, limit)) is not None:
        if offer.rows:
            tables = [source.read(split) for split in source.splits(position, offer.end)]
            size = sum(table.nbytes for table in tables)
            found.append((sum(len(table) for table in tables), size, offer.bytes))
        source.committed(offer.end)
        if offer.end == position or offer.final:
            break
        position = offer.end
    return found


def wide(widths: list[int], *, alike: bool) -> list[Wide]:
    drawn = random.Random(5)
    return [
        Wide(f"n{n}", n, b"x" * width if alike else drawn.randbytes(width))
        for n, width in enumerate(widths)
    ]


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("width", [0, 40, KIB, 20 * KIB, 300 * KIB])
def test_wide_rows_of_a_parquet_file_are_few_in_a_step(
    tmp_path: Path, width: int, alike: bool
) -> None:
    """60 MB went through the driver's exchange, since a row counted as 64 bytes."""
    count = 250 if width < 100 * KIB else 40
    source = of_parquet(tmp_path, wide([width] * count, alike=alike), alike=alike)
    found = offered(source, hr.Limit(1_000, 100 * KIB))
    assert sum(rows for rows, _, _ in found) == count
    for rows, size, said in found:
        assert size <= 130 * KIB or rows == 1
        assert size / 2 <= said + rows * 40 and said <= 2 * size + 4 * KIB


def test_a_parquet_file_of_narrow_and_wide_row_groups_is_taken_by_their_sizes(
    tmp_path: Path,
) -> None:
    widths = [10] * 100 + [30 * KIB] * 100 + [10] * 100
    source = of_parquet(tmp_path, wide(widths, alike=False), alike=False)
    found = offered(source, hr.Limit(1_000, 300 * KIB))
    assert sum(rows for rows, _, _ in found) == 300
    assert found[0][0] > 100, "narrow rows, and a few wide ones"
    assert all(size <= 330 * KIB for _, size, _ in found)


@pytest.mark.parametrize("width", [0, 40, KIB, 20 * KIB, 300 * KIB])
def test_wide_items_are_few_in_a_step(width: int) -> None:
    count = 3_000 if width < KIB else 60
    source = Iterable(wide([width] * count, alike=True), Wide, event_time="at")
    source.open(None)  # type: ignore[arg-type]
    found = offered(source, hr.Limit(1_000, 100 * KIB))
    assert sum(rows for rows, _, _ in found) == count
    for rows, size, said in found:
        assert size <= 130 * KIB or rows == 1
        assert size / 3 <= said <= 2 * size + 4 * KIB
    if width < KIB:
        assert len(found) < 10, "narrow ones are as many as before"


def test_an_item_that_is_larger_than_a_step_may_take_is_read_alone() -> None:
    widths = [10] * 50 + [500 * KIB] + [10] * 50 + [90 * KIB] * 3
    source = Iterable(lambda: iter(wide(widths, alike=True)), Wide, event_time="at")
    source.open(None)  # type: ignore[arg-type]
    found = offered(source, hr.Limit(1_000, 100 * KIB))
    assert sum(rows for rows, _, _ in found) == len(widths)
    assert max(rows for rows, size, _ in found if size > 400 * KIB) == 1
    assert all(size <= 130 * KIB or rows == 1 for rows, size, _ in found)
