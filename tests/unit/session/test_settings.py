"""Defaults of the session give way to whatever a user has set, wherever it was set."""

from __future__ import annotations

import pytest

from headrace.session.settings import LOOPBACK, SESSION_SETTINGS, defaults


class Conf:
    """What a user has set."""

    def __init__(self, **settings: str) -> None:
        self._settings = {key.replace("_", "."): value for key, value in settings.items()}

    def contains(self, key: str) -> bool:
        return key in self._settings

    def get(self, key: str, default: str) -> str:
        return self._settings.get(key, default)


def test_what_is_set_stays() -> None:
    found = defaults(Conf(spark_serializer="mine", spark_ui_enabled="true"), {})
    assert "spark.serializer" not in found and "spark.ui.enabled" not in found
    assert {key for key, _, _ in SESSION_SETTINGS} - {"spark.serializer"} <= set(found)


@pytest.mark.parametrize("master", ["local", "local[4]", "local[*]"])
def test_a_local_session_listens_on_loopback_whoever_has_named_its_master(master: str) -> None:
    assert defaults(Conf(spark_master=master), {})["spark.driver.host"] == LOOPBACK
    assert defaults(Conf(), {})["spark.driver.bindAddress"] == LOOPBACK


@pytest.mark.parametrize(
    ("conf", "environment"),
    [
        (Conf(spark_master="spark://x:7077"), {}),
        (Conf(spark_master="local-cluster[2,1,1024]"), {}),
        (Conf(spark_driver_host="h"), {}),
        (Conf(spark_driver_bindAddress="b"), {}),
        (Conf(), {"SPARK_LOCAL_IP": "10.0.0.1"}),
    ],
)
def test_an_address_that_is_named_or_needed_by_others_is_left_alone(
    conf: Conf, environment: dict[str, str]
) -> None:
    found = defaults(conf, environment)
    assert "spark.driver.host" not in found and "spark.driver.bindAddress" not in found
