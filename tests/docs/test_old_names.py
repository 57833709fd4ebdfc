"""Public names of version 0.1 work, and warn with the new name."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import headrace as hr
from headrace import errors, testing


class Number(msgspec.Struct):
    """When a number came."""

    at: int


class Count(hr.Computation):
    """Counts records."""

    counted = hr.ValueState(int, default=0)

    def process_record(self, ctx: hr.Context, record: hr.Record[Number]) -> None:
        self.counted.value += 1


def counting() -> hr.Pipeline:
    p = hr.Pipeline("old_names")
    items = [Number(n) for n in (1, 2, 3)]
    numbers = p.inject("numbers", hr.sources.Iterable(items, Number, event_time="at"))
    p.compute("counts", Count(), keys={numbers: "at"})
    return p


def test_old_names_of_classes_are_the_new_classes() -> None:
    with pytest.warns(DeprecationWarning, match="HeartbeatSettings"):
        assert hr.Lease is hr.HeartbeatSettings
    with pytest.warns(DeprecationWarning, match="StepAbandoned"):
        assert errors.TryAbandoned is errors.StepAbandoned
    with pytest.raises(AttributeError, match="has no attribute 'Leas'"):
        hr.Leas  # noqa: B018


def test_a_setting_can_be_made_and_read_by_its_old_name() -> None:
    with pytest.warns(DeprecationWarning, match="max_attempts"):
        settings = hr.Settings(max_tries=7, slices=2)
    assert settings == hr.Settings(max_attempts=7, slices=2)
    with pytest.warns(DeprecationWarning, match="max_attempts"):
        assert settings.max_tries == 7
    with pytest.raises(TypeError, match="pass only max_attempts"):
        hr.Settings(max_tries=7, max_attempts=8)


def test_a_run_takes_a_lease(tmp_path: Path) -> None:
    pipeline = counting()
    with pytest.warns(DeprecationWarning, match="heartbeat"):
        job = hr.run(
            pipeline, storage=tmp_path, runner="inline", lease=hr.HeartbeatSettings(0.25, 1.0)
        )
    with job:
        job.drain()
    assert job.head is not None
    assert job.head.counts["counts"].records == 3


def test_a_harness_takes_a_drawing() -> None:
    changed = counting()
    with testing.drive(counting()) as t:
        t.run()
        with pytest.warns(DeprecationWarning, match="pipeline"):
            assert not t.change(drawing=changed).removed
