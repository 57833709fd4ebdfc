"""The doors around a processor: initial state, tables, ``writeStream``, and what is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import PipelineError
from tests.spark.conftest import session
from tests.spark.processors.engines import SETTINGS, Noted, shown

pytestmark = pytest.mark.spark

OUTPUT = "k STRING, said STRING"


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    made = session("local[2]", **SETTINGS)
    yield made
    made.stop()


def summing(pandas: bool) -> Any:
    """Return a processor that adds up values, from what initial state says; in its form."""
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    class Summing(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.sum = handle.getValueState("sum", "n BIGINT")

        def _add(self, values: Any) -> int:
            before = self.sum.get()
            total = (before[0] if before else 0) + sum(values)
            self.sum.update((total,))
            return int(total)

        def _out(self, key: Any, said: str) -> Any:
            if not pandas:
                return Row(said=said, k=key[0])
            import pandas as pd

            return pd.DataFrame({"said": [said], "k": [key[0]]})

        def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
            self._add(
                [int(v) for v in initialState["start"]] if pandas else [initialState["start"]]
            )
            self.handle.registerTimer(1_000)

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            values = [int(v) for f in rows for v in f["v"]] if pandas else [row.v for row in rows]
            yield self._out(key, f"sum {self._add(values)}")

        def handleExpiredTimer(
            self, key: Any, timerValues: Any, expiredTimerInfo: Any
        ) -> Iterator[Any]:
            yield self._out(key, f"timer {self.sum.get()[0]}")

        def close(self) -> None:
            pass

    return Summing()


def written(spark: Any, folder: Path, rows: list[tuple[str | None, int]]) -> Any:
    """Write rows as a file; return a stream of all files."""
    folder.mkdir(parents=True, exist_ok=True)
    spark.createDataFrame(rows, "k STRING, v INT").coalesce(1).write.mode("append").json(
        str(folder)
    )
    return spark.readStream.schema("k STRING, v INT").json(str(folder))


@pytest.mark.parametrize("pandas", [False, True], ids=["rows", "pandas"])
@pytest.mark.drawn(1)
def test_initial_state_comes_before_the_rows_and_for_keys_without_rows_too(
    pandas: bool, spark: Any, tmp_path: Path
) -> None:
    initial = spark.createDataFrame(
        [("a", 100), ("a", 1), ("only initial", 7)], "k STRING, start BIGINT"
    ).groupBy("k")
    stream = written(spark, tmp_path / "in", [("a", 1), ("b", 2), ("a", 3)])
    arguments = [summing(pandas), OUTPUT, "Update", "processingTime", initial]
    grouped = stream.groupBy("k")
    theirs, ours = Noted(), Noted()
    own = grouped.transformWithStateInPandas if pandas else grouped.transformWithState
    theirs.expect(2)
    query = own(*arguments).writeStream.outputMode("update").foreachBatch(theirs)
    query = query.option("checkpointLocation", str(tmp_path / "spark")).start()
    assert theirs.seen.wait(60)
    query.stop()
    door = hr.spark.transform_with_state_in_pandas if pandas else hr.spark.transform_with_state
    made = door(grouped, *arguments)
    for _ in range(2):  # the second time, there is neither input nor initial state
        started = made.writeStream.foreachBatch(ours).option(
            "checkpointLocation", str(tmp_path / "hr")
        )
        started.trigger(availableNow=True).start().awaitTermination()
    assert ours.in_order() == theirs.in_order()
    assert len(ours.in_order()[0]) == 4


@pytest.mark.parametrize("pandas", [False, True], ids=["rows", "pandas"])
def test_a_table_is_read_at_once(pandas: bool, spark: Any, tmp_path: Path) -> None:
    rows: list[tuple[str | None, int]] = [("a", 1), ("b", 2), ("a", 3)]
    grouped = spark.createDataFrame(rows, "k STRING, v INT").groupBy("k")
    arguments = [summing(pandas), OUTPUT, "Update", "processingTime"]
    own = grouped.transformWithStateInPandas if pandas else grouped.transformWithState
    door = hr.spark.transform_with_state_in_pandas if pandas else hr.spark.transform_with_state
    noted = Noted()
    query = door(grouped, *arguments).writeStream.foreachBatch(noted)
    query.option("checkpointLocation", str(tmp_path / "hr")).start().awaitTermination()
    assert noted.in_order() == [shown(own(*arguments).collect())]


def test_the_output_is_written_as_files_and_as_a_view(spark: Any, tmp_path: Path) -> None:
    stream = written(spark, tmp_path / "in", [("a", 1), (None, 2), ("a", 3)])
    made = hr.spark.transform_with_state(
        stream.groupBy("k"), summing(False), OUTPUT, "Update", "None"
    )
    query = made.writeStream.queryName("sums").format("memory").outputMode("append")
    started = (
        query.option("checkpointLocation", str(tmp_path / "one")).trigger(availableNow=True).start()
    )
    started.awaitTermination()
    assert not started.isActive
    assert started.exception() is None
    found = {(row.k, row.said) for row in spark.table("sums").collect()}
    assert found == {("a", "sum 4"), (None, "sum 2")}
    query = made.writeStream.format("json").option("checkpointLocation", str(tmp_path / "two"))
    query.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()
    rows = spark.read.json(str(tmp_path / "out")).select("k", "said").collect()
    assert {tuple(row) for row in rows} == found


def test_a_query_that_fails_says_so_and_a_running_one_stops(spark: Any, tmp_path: Path) -> None:
    stream = written(spark, tmp_path / "in", [("a", 1)])
    made = hr.spark.transform_with_state(
        stream.groupBy("k"), summing(False), "k INT, said STRING", "Update", "None"
    )
    query = (
        made.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "one")).start()
    )
    with pytest.raises(Exception, match="column 'k' is int32"):
        query.awaitTermination()
    assert query.exception() is not None
    made = hr.spark.transform_with_state(
        stream.groupBy("k"), summing(False), OUTPUT, "Update", "None"
    )
    noted = Noted()
    noted.expect(1)
    query = (
        made.writeStream.foreachBatch(noted)
        .option("checkpointLocation", str(tmp_path / "two"))
        .start()
    )
    assert noted.seen.wait(60)
    assert query.isActive
    query.stop()
    assert not query.isActive
    assert len(noted.in_order()) == 1


def test_what_makes_no_sense_is_refused_by_name(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql.functions import col

    stream = written(spark, tmp_path / "in", [("a", 1)])
    door = hr.spark.transform_with_state
    with pytest.raises(PipelineError, match="none of its columns"):
        door(stream.groupBy(col("v") + 1), summing(False), OUTPUT, "Update", "None")
    with pytest.raises(PipelineError, match=r"a DataFrame was given, and not what groupBy\(\)"):
        door(stream, summing(False), OUTPUT, "Update", "None")
    with pytest.raises(PipelineError, match="grouped by nothing"):
        door(stream.groupBy(), summing(False), OUTPUT, "Update", "None")
    with pytest.raises(PipelineError, match="no StatefulProcessor"):
        door(stream.groupBy("k"), object(), OUTPUT, "Update", "None")
    with pytest.raises(PipelineError, match="outputMode='Sideways'"):
        door(stream.groupBy("k"), summing(False), OUTPUT, "Sideways", "None")
    with pytest.raises(PipelineError, match="eventTimeColumnName='said'"):
        door(stream.groupBy("k"), summing(False), OUTPUT, "Update", "None", None, "said")
    made = door(stream.groupBy("k"), summing(False), OUTPUT, "Update", "None")
    with pytest.raises(PipelineError, match="has no select"):
        made.select("k")
    with pytest.raises(PipelineError, match="no format 'kafka'"):
        made.writeStream.format("kafka")
    with pytest.raises(PipelineError, match=r"no writeStream\.toTable"):
        made.writeStream.toTable("t")
    with pytest.raises(PipelineError, match="no checkpoint"):
        made.writeStream.format("noop").start()
    with pytest.raises(PipelineError, match="in no pipeline yet"):
        _ = made.stream
    with pytest.raises(PipelineError, match="needs a checkpoint"):
        door(
            stream.groupBy("k"), summing(False), OUTPUT, "Update", "None", pipeline=hr.Pipeline("p")
        )
    with pytest.raises(PipelineError, match="grouped by"):
        numbers = spark.createDataFrame([(1, 1)], "k INT, start BIGINT").groupBy("k")
        door(stream.groupBy("k"), summing(False), OUTPUT, "Update", "None", numbers)
