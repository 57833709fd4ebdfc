"""How far an injector was read is kept under its name: none goes, and none changes, without a word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import headrace as hr
from headrace.errors import Damaged, HeadraceError, PipelineError, SchemaChanged
from headrace.pipeline.source import Limit
from headrace.sources.inbox import Producer

MINUTE = 60_000_000


class Visit(msgspec.Struct):
    page: str
    at: int


def visits(*minutes: float) -> list[Visit]:
    return [Visit("/home", int(minute * MINUTE)) for minute in minutes]


def counting(sources: dict[str, hr.Source]) -> tuple[hr.Pipeline, list[int]]:
    """Return a pipeline that counts visits by the minute, and where the counts come to."""
    counts: list[int] = []
    pipeline = hr.Pipeline("visits")
    keys: dict[Any, Any] = {
        pipeline.inject(name, source, watermark=hr.ascending()): "page"
        for name, source in sources.items()
    }
    counted = pipeline.compute("count", hr.ops.TumblingCount("1m"), keys=keys)
    sink = hr.sinks.Calls(lambda _, rows: counts.extend(rows["count"].to_pylist()))
    pipeline.sink("out", counted, sink)
    return pipeline, counts


def iterable(*minutes: float) -> hr.sources.Iterable:
    return hr.sources.Iterable(visits(*minutes), Visit, event_time="at")


def night(storage: Path, sources: dict[str, hr.Source], **how: Any) -> list[int]:
    pipeline, counts = counting(sources)
    with hr.run(pipeline, storage=storage, runner="inline", workers=1, **how) as job:
        job.catch_up()
    return counts


def test_an_injector_that_was_renamed_is_refused_and_its_new_name_is_told(tmp_path: Path) -> None:
    assert night(tmp_path, {"visits": iterable(0, 0.5, 1)}) == [2]
    with pytest.raises(PipelineError, match=r"'visits'.*is it 'hits' now\?") as raised:
        night(tmp_path, {"hits": iterable(0, 0.5, 1)})
    assert "--remove-injector visits" in raised.value.remedy
    assert night(tmp_path, {"visits": iterable(0, 0.5, 1, 2)}) == [1], "nothing was lost by it"


def test_an_injector_may_go_where_that_is_said_and_comes_back_where_it_was(tmp_path: Path) -> None:
    both: dict[str, hr.Source] = {"visits": iterable(0, 0.5), "more": iterable(0, 1)}
    assert night(tmp_path, both) == []
    alone: dict[str, hr.Source] = {"more": iterable(0, 1, 2)}
    with pytest.raises(PipelineError, match="'visits'"):
        night(tmp_path, alone)
    assert night(tmp_path, alone, remove_injectors="visits") == [3, 1]
    assert night(tmp_path, alone) == [], "it need be said once"
    back: dict[str, hr.Source] = {"visits": iterable(0, 0.5, 2), "more": iterable(0, 1, 2)}
    assert night(tmp_path, back) == []
    assert night(tmp_path, {**back, "visits": iterable(0, 0.5, 2, 3)}) == []
    assert night(tmp_path, {"visits": iterable(0, 0.5, 2, 3), "more": iterable(0, 1, 2, 3)}) == [2]


def test_an_injector_goes_with_the_computation_that_read_it(tmp_path: Path) -> None:
    def drawn(*names: str) -> hr.Pipeline:
        pipeline = hr.Pipeline("visits")
        for name in names:
            stream = pipeline.inject(name, iterable(0, 1))
            pipeline.compute(f"count-{name}", hr.ops.TumblingCount("1m"), keys={stream: "page"})
        return pipeline

    with hr.testing.drive(drawn("one", "two")) as driven:
        driven.run()
        driven.resume(pipeline=drawn("one", "two", "three"))
        driven.run()
        with pytest.raises(SchemaChanged, match="'count-two' is gone"):
            driven.resume(pipeline=drawn("one", "three"))


def sources(folder: Path) -> dict[str, hr.Source]:
    """Return the same visits in a source of each kind."""
    (folder / "files").mkdir()
    lines = [msgspec.json.encode(visit) + b"\n" for visit in visits(0, 0.5, 1)]
    (folder / "files" / "a.jsonl").write_bytes(b"".join(lines))
    Producer(folder / "inbox", "web", type=Visit, event_time="at", time_unit="us").append(
        visits(0, 0.5, 1)
    )
    return sources_again(folder)


@pytest.mark.parametrize("was", ["files", "an iterable", "an inbox"])
@pytest.mark.parametrize("now", ["files", "an iterable", "an inbox"])
def test_a_source_of_another_kind_under_an_old_name_is_refused(
    was: str, now: str, tmp_path: Path
) -> None:
    kinds = sources(tmp_path)
    assert kinds[was].source_kind == was
    night(tmp_path / "storage", {"visits": kinds[was]})
    if was == now:
        night(tmp_path / "storage", {"visits": sources_again(tmp_path)[now]})
        return
    with pytest.raises(SchemaChanged, match=f"read from {was}, and is {now} now") as raised:
        night(tmp_path / "storage", {"visits": kinds[now]})
    assert "another name" in raised.value.remedy


def sources_again(folder: Path) -> dict[str, hr.Source]:
    return {
        "files": hr.sources.Files(folder / "files", type=Visit, event_time="at", time_unit="us"),
        "an iterable": iterable(0, 0.5, 1),
        "an inbox": hr.sources.Inbox(folder / "inbox", Visit, event_time="at", time_unit="us"),
    }


@pytest.mark.parametrize("position", ["x", None, -1, 1.5, 2**70, [1], True, {"form": "files"}])
def test_a_position_that_no_iterable_has_is_damage(position: Any) -> None:
    for source in (iterable(0), hr.sources.Iterable(lambda: visits(0), Visit, event_time="at")):
        with pytest.raises(HeadraceError) as raised:
            source.offer(position, Limit(10, 1 << 20))
        assert isinstance(raised.value, Damaged)
