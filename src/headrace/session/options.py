"""What a user asks of the session that Headrace starts, and how ``spark-submit`` is told."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Mapping, Sequence

import msgspec

from headrace.errors import PipelineError

#: The levels of a log, from few lines to many.
LOG_LEVELS = ("error", "warning", "info", "debug")
_COORDINATES = re.compile(r"[^:\s,]+:[^:\s,]+:[^:\s,]+")
_SHELL = "pyspark-shell"
#: What ``spark-submit`` would decide otherwise for a shell, which this is to it.
_OURS = ("--name", "headrace", "--conf", "spark.ui.showConsoleProgress=false")


class SessionOptions(msgspec.Struct, frozen=True):
    """What a user asks of the session.

    Attributes:
        conf: Spark's settings, such as ``{"spark.driver.memory": "4g"}``.
        packages: packages of Maven Central for the session, each as ``GROUP:ARTIFACT:VERSION``.
        master: where the session runs, such as ``local[4]`` or ``spark://HOST:7077``.
        log_level: how much Spark writes to its log: one of :data:`LOG_LEVELS`.

    Raises:
        PipelineError: if one of them cannot be what it should be.
    """

    conf: Mapping[str, str] = {}
    packages: Sequence[str] = ()
    master: str | None = None
    log_level: str | None = None

    def __post_init__(self) -> None:
        for key in self.conf:
            if not key.startswith("spark.") or key == "spark." or key.split() != [key]:
                raise PipelineError(
                    f"{key!r} is not a setting of Spark",
                    remedy="names of settings begin with spark., as in spark.driver.memory=4g",
                )
        for package in self.packages:
            if not _COORDINATES.fullmatch(package):
                raise PipelineError(
                    f"{package!r} is not a package",
                    remedy="say GROUP:ARTIFACT:VERSION, as in org.apache.spark:spark-avro_2.13:4.1.1",
                )
        if self.master is not None and (not self.master or self.master.startswith("-")):
            raise PipelineError(
                f"{self.master!r} is not a master",
                remedy="say local[4], spark://HOST:PORT, yarn, …",
            )
        if self.log_level is not None and self.log_level not in LOG_LEVELS:
            close = difflib.get_close_matches(self.log_level, LOG_LEVELS, n=1)
            meant = f"did you mean {close[0]}? " if close else ""
            raise PipelineError(
                f"{self.log_level!r} is not a level of a log",
                remedy=f"{meant}say one of {', '.join(LOG_LEVELS)}",
            )

    def over(self, other: SessionOptions) -> SessionOptions:
        """Return these options, and those of another set that these do not name."""
        return SessionOptions(
            {**other.conf, **self.conf},
            [*other.packages, *(name for name in self.packages if name not in other.packages)],
            self.master if self.master is not None else other.master,
            self.log_level if self.log_level is not None else other.log_level,
        )

    @property
    def settings(self) -> dict[str, str]:
        """The options as settings of a session, as far as they are settings."""
        found = dict(self.conf)
        if self.master is not None:
            found["spark.master"] = self.master
        return found

    def arguments(self) -> list[str]:
        """Return the options as arguments of ``spark-submit``."""
        found = [] if self.master is None else ["--master", self.master]
        for key, value in self.conf.items():
            found += ["--conf", f"{key}={value}"]
        if self.packages:
            found += ["--packages", ",".join(self.packages)]
        return found


def submit_arguments(above: SessionOptions, environment: str, below: SessionOptions) -> str:
    """Return a value for ``PYSPARK_SUBMIT_ARGS``. What comes later takes precedence.

    Packages are the exception. ``spark-submit`` takes the last list of packages only, so they are
    put together.

    Args:
        above: options that take precedence over the environment.
        environment: the value that the environment has.
        below: options over which the environment takes precedence.
    """
    given = [word for word in shlex.split(environment) if word != _SHELL]
    given, packages = _without_packages(given)
    every = dict.fromkeys([*below.packages, *packages, *above.packages])
    words = [
        *_OURS,
        *msgspec.structs.replace(below, packages=()).arguments(),
        *given,
        *msgspec.structs.replace(above, packages=()).arguments(),
    ]
    if every:
        words += ["--packages", ",".join(every)]
    return shlex.join([*words, _SHELL])


def _without_packages(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return arguments without those about packages, and the packages."""
    others: list[str] = []
    packages: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--packages":
            packages += next(rest, "").split(",")
        elif word.startswith("--packages="):
            packages += word.partition("=")[2].split(",")
        else:
            others.append(word)
    return others, [name for name in packages if name]


def conf_of(pairs: Sequence[str]) -> dict[str, str]:
    """Return settings that are given as texts like ``spark.driver.memory=4g``.

    Raises:
        PipelineError: if one of them has no value.
    """
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise PipelineError(
                f"the setting {pair!r} has no value",
                remedy="say KEY=VALUE, as in spark.driver.memory=4g",
            )
        found[key] = value
    return found
