"""The settings of a session that Headrace starts, and a warning for each that another one lacks."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from typing import Any

log = logging.getLogger("headrace.spark")

#: Settings of a session that Headrace starts: (key, value, what it costs to go without).
SESSION_SETTINGS: list[tuple[str, str, str]] = [
    ("spark.python.unix.domain.socket.enabled", "true", "a stage takes twice as long over TCP"),
    ("spark.shuffle.reduceLocality.enabled", "false", "workers may leave their hosts"),
    ("spark.shuffle.compress", "false", "parcels are compressed for nothing"),
    ("spark.shuffle.checksum.enabled", "false", "a third file for each map task"),
    ("spark.shuffle.sort.bypassMergeThreshold", "1", "a file for each consumer of a map task"),
    ("spark.serializer", "org.apache.spark.serializer.KryoSerializer", "a slower shuffle"),
    ("spark.locality.wait.node", "0", "tasks may wait for a busy host"),
    ("spark.scheduler.revive.interval", "50ms", "tasks may wait up to a second for a place"),
]
#: The address that a local session listens on.
LOOPBACK = "127.0.0.1"
_QUIET: dict[str, str] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.broadcast.compress": "false",
}
_LOCAL = re.compile(r"local(\[[^\]]*\])?")
_ADDRESSES = ("spark.driver.host", "spark.driver.bindAddress")


def is_local(master: str) -> bool:
    """Return whether all tasks of a master run in its own process."""
    return bool(_LOCAL.fullmatch(master))


def defaults(conf: Any, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return settings for a session, without those that its user has set.

    Other hosts cannot connect to a local session, unless the user has named its address.

    Args:
        conf: a ``SparkConf`` with what the user has set: in ``spark-defaults.conf``, in the
            environment, and on the command line.
        environment: the environment of the process. An address of Spark in it takes precedence.
    """
    found = {key: value for key, value, _ in SESSION_SETTINGS} | _QUIET
    named = any(map(conf.contains, _ADDRESSES)) or "SPARK_LOCAL_IP" in environment
    if is_local(conf.get("spark.master", "local[*]")) and not named:
        found |= dict.fromkeys(_ADDRESSES, LOOPBACK)
    return {key: value for key, value in found.items() if not conf.contains(key)}


def check_settings(context: Any) -> list[str]:
    """Log a warning if settings of a session will cost time, and each of them as information.

    Returns:
        What each of them costs.
    """
    conf = context.getConf()
    missed = [
        f"{key} is {conf.get(key, 'not set')}, better {value}: {cost}"
        for key, value, cost in SESSION_SETTINGS
        if conf.get(key, "") != value
    ]
    if missed:
        log.warning(
            "this Spark session lacks %s that make steps faster: start it with "
            "headrace.spark_session(), or see each at level INFO of the logger headrace.spark",
            "a setting" if len(missed) == 1 else f"{len(missed)} settings",
        )
    for line in missed:
        log.info("%s", line)
    return missed
