"""The flights job finds the same whether words are sent once or twice, and says what came too late."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from tests.support.flights import FOLDER, first_lines

RESULTS = ["airport_days", "airport_anomalies", "carrier_anomalies", "late_departures"]
#: About the first seven weeks of 2013: the model is warm after three.
LINES = 42_000


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the job makes of the stream, and of the same with every word sent once."""
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(FOLDER))
        import pipeline

        header, *twice = first_lines(tmp_path_factory.mktemp("stream"), LINES)
        streams = {"twice": twice, "once": list(dict.fromkeys(twice))}
        runs = {}
        for name, lines in streams.items():
            data = tmp_path_factory.mktemp(name)
            (data / "departures.csv").write_text(header + "".join(lines))
            runs[name] = {"sent": len(lines), **run(pipeline, data)}
        sys.modules.pop("pipeline")
    return runs


def run(pipeline: Any, data: Path) -> dict[str, Any]:
    """Return the job's results, each sink's in an order of its own, and its counts."""
    job = hr.run(
        pipeline.build(data, data / "out"),
        storage=data / "state",
        workers=2,
        runner="inline",
        settings=hr.Settings(limit=hr.Limit(2_000, 16 << 20)),
    )
    with job:
        job.drain()
    assert job.head is not None
    results = {
        sink: sorted(
            json.dumps(json.loads(line), sort_keys=True)
            for file in (data / "out" / sink).glob("*.jsonl")
            for line in file.read_text().splitlines()
        )
        for sink in RESULTS
    }
    return {"results": results, "counts": job.head.counts}


def test_words_that_are_sent_twice_change_nothing(found: dict[str, Any]) -> None:
    once, twice = found["once"], found["twice"]
    again = twice["sent"] - once["sent"]
    assert again > 1_500
    assert twice["counts"]["departures.ids"].duplicates == again
    for sink in RESULTS:
        assert once["results"][sink], f"{sink} found something"
        assert twice["results"][sink] == once["results"][sink]


def test_what_came_ten_days_after_is_late_and_kept_aside(found: dict[str, Any]) -> None:
    for run in found.values():
        assert run["counts"]["airports"].late == len(run["results"]["late_departures"]) > 20
        assert run["counts"]["departures.ids"].expired == 0
