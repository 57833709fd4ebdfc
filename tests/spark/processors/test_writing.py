"""``writeStream`` beside Spark's own: the files that it writes, and what its query says of itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import PipelineError, UserCodeError
from tests.spark.conftest import session
from tests.spark.processors.engines import SETTINGS
from tests.support.pages import ROOT
from tests.support.processes import wait_for

pytestmark = pytest.mark.spark

OUTPUT = "timestamp TIMESTAMP, key STRING, `how many` INT"


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    made = session("local[2]", **SETTINGS)
    yield made
    made.stop()


def counting() -> Any:
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    class Counting(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.count = handle.getValueState("count", "n INT")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            found = list(rows)
            if any(row.v < 0 for row in found):
                raise ValueError("a value is negative")
            self.count.update((len(found),))
            yield Row(**{"timestamp": found[0].t, "key": key[0], "how many": len(found)})

        def close(self) -> None:
            pass

    return Counting()


SCHEMA = "k STRING, v INT, t TIMESTAMP"


def put(folder: Path, name: str, *rows: tuple[str, int]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps({"k": k, "v": v, "t": f"2024-05-01T12:00:{n:02}Z"})
        for n, (k, v) in enumerate(rows)
    ]
    (folder / name).write_text("\n".join(lines) + "\n")


def stream(spark: Any, folder: Path) -> Any:
    return (
        spark.readStream.schema(SCHEMA)
        .option("maxFilesPerTrigger", 1)
        .json(str(folder))
        .withWatermark("t", "5 seconds")
        .groupBy("k")
    )


def ours(spark: Any, folder: Path) -> Any:
    return hr.spark.transform_with_state(
        stream(spark, folder), counting(), OUTPUT, "Update", "EventTime"
    )


def read_back(spark: Any, kind: str, folder: Path) -> tuple[list[str], list[Any]]:
    reader = spark.read if kind == "parquet" else spark.read.schema(OUTPUT)
    frame = reader.format(kind).load(str(folder))
    names = sorted(frame.columns)
    return names, sorted(tuple(map(str, row)) for row in frame.select(*names).collect())


@pytest.mark.parametrize("kind", ["json", "csv", "parquet"])
@pytest.mark.drawn(1)
def test_files_have_the_columns_that_spark_s_have(spark: Any, tmp_path: Path, kind: str) -> None:
    put(tmp_path / "in", "1.json", ("a", 1), ("b", 2), ("a", 3))
    theirs = stream(spark, tmp_path / "in").transformWithState(
        counting(), OUTPUT, "Append", "EventTime"
    )
    for name, frame in (("theirs", theirs), ("ours", ours(spark, tmp_path / "in"))):
        writer = frame.writeStream.format(kind).outputMode("append").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(tmp_path / f"checkpoint-{name}"))
        writer.start(str(tmp_path / name)).awaitTermination()
    found = read_back(spark, kind, tmp_path / "ours")
    assert found == read_back(spark, kind, tmp_path / "theirs")
    assert len(found[1]) == 2
    (file,) = (tmp_path / "ours").glob("step-*")
    assert file.suffix == f".{kind}"


def started(made: Any, checkpoint: Path, **options: Any) -> Any:
    writer = made.writeStream.format("noop").queryName("counted").options(**options)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


def test_a_query_reports_its_steps_as_spark_does(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    put(tmp_path / "in", "1.json", ("a", 1), ("b", 2), ("a", 3))
    put(tmp_path / "in", "2.json", ("a", 1))
    made = ours(spark, tmp_path / "in")
    query = started(made, tmp_path / "checkpoint")
    query.awaitTermination()
    assert [one["numInputRows"] for one in query.recentProgress if one.numInputRows] == [3, 1]
    last = query.lastProgress
    assert isinstance(last, StreamingQueryProgress)
    assert (str(last.id), str(last.runId), last.name) == (query.id, query.runId, "counted")
    assert last.eventTime["watermark"] == "2024-05-01T11:59:57.000Z"
    assert last.batchDuration == last.durationMs["triggerExecution"] >= 0
    assert last.stateOperators[0].numRowsDroppedByWatermark == 0
    assert json.loads(last.json)["batchId"] == last.batchId == query.recentProgress[-1].batchId
    assert query.status == {
        "message": "Stopped",
        "isDataAvailable": False,
        "isTriggerActive": False,
    }
    again = started(made, tmp_path / "checkpoint")
    again.awaitTermination()
    assert (again.id, again.lastProgress) == (query.id, None)
    assert again.runId != query.runId
    other = started(made, tmp_path / "other")
    other.stop()
    assert uuid.UUID(other.id) != uuid.UUID(query.id)


def test_an_idle_query_says_that_it_waits(spark: Any, tmp_path: Path) -> None:
    put(tmp_path / "in", "1.json", ("a", 1))
    writer = ours(spark, tmp_path / "in").writeStream.format("noop")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        wait_for(lambda: query.lastProgress is not None and not query.status["isDataAvailable"])
        status = query.status
        assert status["message"] == "Waiting for data to arrive"
        assert not status["isTriggerActive"]
    finally:
        query.stop()


def test_explain_prints_what_runs(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path / "in", "1.json", ("a", 1))
    query = started(ours(spark, tmp_path / "in"), tmp_path / "checkpoint")
    query.explain()
    query.awaitTermination()
    assert "transformed" in capsys.readouterr().out


def test_a_query_that_fails_raises_spark_s_exception_with_ours_as_its_cause(
    spark: Any, tmp_path: Path
) -> None:
    from pyspark.errors import StreamingQueryException

    put(tmp_path / "in", "1.json", ("a", -1))
    query = started(ours(spark, tmp_path / "in"), tmp_path / "checkpoint")
    with pytest.raises(StreamingQueryException, match="a value is negative") as failed:
        query.awaitTermination()
    assert isinstance(failed.value.__cause__, UserCodeError)
    assert failed.value.getCondition() == "STREAM_FAILED"
    assert query.exception() is failed.value
    assert query.id in str(failed.value)
    message = query.status["message"]
    assert message.startswith("Terminated with exception: ") and "a value is negative" in message


def test_options_count_or_a_warning_says_that_they_do_not(
    spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path / "in", "1.json", ("a", 1))
    made = ours(spark, tmp_path / "in")
    writer = made.writeStream.format("csv").option("Header", True).option("compression", "gzip")
    writer = writer.option("maxRecordsPerFile", 10).trigger(availableNow=True)
    writer = writer.option("checkpointlocation", str(tmp_path / "checkpoint"))
    writer.start(str(tmp_path / "out")).awaitTermination()
    (file,) = (tmp_path / "out").glob("*.csv.gz")
    assert spark.read.csv(str(file), header=True).columns == ["timestamp", "key", "how many"]
    (said,) = [one.getMessage() for one in caplog.records if "no effect" in one.getMessage()]
    assert "maxRecordsPerFile" in said
    with pytest.raises(PipelineError, match="compression"):
        writer.option("compression", "lz4").start(str(tmp_path / "out"))


@pytest.mark.drawn(2, "quiet programs")
def test_what_is_printed_is_there_at_once(tmp_path: Path) -> None:
    """Standard output that is no terminal holds back what is printed."""
    put(tmp_path / "in", "1.json", ("a", 1))
    program = (
        "from pathlib import Path\n"
        "from tests.spark.conftest import session\n"
        "from tests.spark.processors.engines import SETTINGS\n"
        "from tests.spark.processors.test_writing import ours\n"
        "spark = session('local[1]', **SETTINGS)\n"
        "made = ours(spark, Path('in'))\n"
        "writer = made.writeStream.format('console').option('checkpointLocation', 'checkpoint')\n"
        "writer.start().awaitTermination()\n"
    )
    path = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        found = next((line for line in process.stdout if "2024-05-01" in line), "")
        process.kill()
    assert "|a" in found


@pytest.mark.drawn(2, "quiet programs")
def test_a_new_query_and_one_that_fails_leave_no_stack_traces_of_java(tmp_path: Path) -> None:
    put(tmp_path / "in", "1.json", ("a", 1))
    put(tmp_path / "in", "2.json", ("a", -1))
    put(tmp_path / "in", "3.json", ("a", 1))
    program = (
        "from pathlib import Path\n"
        "from pyspark.sql import SparkSession\n"
        "from tests.spark.processors.test_writing import ours, started\n"
        "SparkSession.builder.master('local[1]').getOrCreate()\n"
        "started(ours(SparkSession.active(), Path('in')), Path('checkpoint')).awaitTermination()\n"
    )
    path = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    said = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    ).stderr
    assert "ValueError: a value is negative" in said
    assert "FileNotFoundException" not in said, said
    assert "_Stopped" not in said, said
    settings = [line for line in said.splitlines() if "this Spark session" in line]
    assert len(settings) == 1 and "headrace.spark" in settings[0], said
    assert "better true" not in said
