"""State as a DataFrame on a real Spark: in parts, as of one step, whatever the pipeline does meanwhile."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.checkpoints.catalog import Checkpoints
from headrace.checkpoints.spark_source import register
from headrace.ledger.pins import Pins
from headrace.storage import LocalStore
from tests.support.checkpointed import driven, items

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark(local_spark: Any) -> Any:
    register(local_spark)
    return local_spark


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("state")
    driven(LocalStore(folder)).close()
    return folder


def of(spark: Any, storage: Path, computation: str, **options: Any) -> Any:
    reader = spark.read.format("headrace-state").option("computation", computation)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load(str(storage))


def in_order(table: pa.Table) -> list[Any]:
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


@pytest.mark.parametrize(
    ("computation", "section"),
    [("cells", "state"), ("cells", "timers"), ("cells", "workers"), ("tables", "table:by_n")],
)
def test_a_section_is_the_same_as_a_data_frame(
    spark: Any, storage: Path, computation: str, section: str
) -> None:
    frame = of(spark, storage, computation, section=section, parts=3)
    expected = hr.open_state(storage).read(computation, section)
    assert frame.columns == expected.column_names
    assert frame.rdd.getNumPartitions() == (1 if section == "workers" else 3)
    found = frame.toArrow()
    assert in_order(found) == in_order(expected.cast(found.schema))


def test_an_older_step_can_be_queried(spark: Any, storage: Path) -> None:
    frame = of(spark, storage, "cells", step=9)
    expected = hr.open_state(storage, 9).read("cells")
    assert frame.where("state = 'total'").count() == len(
        [1 for name in expected.column("state").to_pylist() if name == "total"]
    )


def test_the_step_of_a_read_is_kept_while_the_pipeline_goes_on(spark: Any, tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with driven(store) as t:
        t.clock(datetime.now(UTC))  # pins are judged by the clock
        expected = hr.open_state(tmp_path).read("cells")
        frame = of(spark, tmp_path, "cells", pinFor="10m", parts=2)
        assert frame.count() == expected.num_rows  # (when it is planned, it is pinned)
        (pin, *_) = Pins(store).known().values()
        assert pin is not None and (pin.step, pin.by) == (12, "headrace-state")
        for step in range(16):
            t.push_many("items", items(300 + step, 1))
            t.step()
        assert Checkpoints(store).versions()[-1] == 28
        assert hr.open_state(tmp_path, 12).read("cells") == expected


def test_what_is_asked_wrongly_is_refused_with_the_remedy(spark: Any, storage: Path) -> None:
    for options, said in (
        ({"sektion": "state"}, "does not know option 'sektion'"),
        ({"step": "x"}, "option 'step' is 'x'"),
        ({"step": "1"}, "HR314"),
        ({"section": "nothing"}, "has no section 'nothing'"),
    ):
        with pytest.raises(Exception, match=said):
            of(spark, storage, "cells", **options).collect()
    with pytest.raises(Exception, match="needs option 'computation'"):
        spark.read.format("headrace-state").load(str(storage)).collect()


def test_damage_fails_the_read_and_names_the_file(spark: Any, tmp_path: Path) -> None:
    driven(LocalStore(tmp_path), steps=3).close()
    frame = of(spark, tmp_path, "cells", parts=2)
    for file in Checkpoints(LocalStore(tmp_path)).open().files():
        data = bytearray((tmp_path / file.place).read_bytes())
        data[file.offset + 8] ^= 1
        (tmp_path / file.place).write_bytes(bytes(data))
    with pytest.raises(Exception, match="HR307"):
        frame.collect()
