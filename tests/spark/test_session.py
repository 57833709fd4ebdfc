"""An active session is used as it is, and what it lacks is said; Spark Connect is refused."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import SessionUnsuitable
from headrace.runners.spark import SESSION_SETTINGS, SparkRunner, check_settings

pytestmark = pytest.mark.spark


class Conf:
    """A session's settings."""

    def __init__(self, settings: dict[str, str]) -> None:
        self._settings = settings

    def getConf(self) -> Any:
        return self

    def get(self, key: str, default: str = "") -> str:
        return self._settings.get(key, default)


def test_each_setting_that_is_missed_is_named_with_its_cost() -> None:
    assert check_settings(Conf({key: value for key, value, _ in SESSION_SETTINGS})) == []
    missed = check_settings(Conf({"spark.shuffle.compress": "true"}))
    assert len(missed) == len(SESSION_SETTINGS)
    assert (
        "spark.shuffle.compress is true, better false: parcels are compressed for nothing" in missed
    )


def test_spark_connect_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://localhost")
    with pytest.raises(SessionUnsuitable, match="Spark Connect has no RDDs") as caught:
        SparkRunner()
    assert "classic session" in str(caught.value)


def test_the_active_session_is_used_and_left_running(local_spark: Any) -> None:
    runner = SparkRunner()
    assert runner.default_workers() == 4
    runner.close()
    assert local_spark.range(3).count() == 3
