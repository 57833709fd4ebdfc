"""The options about Spark's session, for all commands that may start one."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator, Sequence

import click
from click.core import ParameterSource

from headrace.cli.common import say
from headrace.session import SessionOptions, options_of_process
from headrace.session.options import LOG_LEVELS, conf_of

#: Options that say how Spark's session is started.
SESSION = [
    click.option(
        "--master",
        help="Where Spark runs, such as local[4] or spark://HOST:PORT.  "
        "[default: what the environment says; local[*]]",
    ),
    click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A Spark setting. Repeatable."),
    click.option(
        "--packages",
        multiple=True,
        metavar="GROUP:ARTIFACT:VERSION",
        help="A package from Maven Central that Spark loads. Repeatable, or separated by commas.",
    ),
    click.option(
        "--log-level",
        type=click.Choice(LOG_LEVELS),
        default="warning",
        show_default=True,
        help="How much Headrace and Spark log.",
    ),
]


@contextlib.contextmanager
def session_options(
    master: str | None, conf: Sequence[str], packages: Sequence[str], log_level: str
) -> Iterator[None]:
    """Set the options of the session that may be started in the block.

    Those of the command line and the environment of Headrace take precedence over the environment
    of Spark, and this over those of the project file.

    Raises:
        PipelineError: if an option cannot be what it should be.
    """
    logging.getLogger("headrace").setLevel(log_level.upper())
    given = {
        "master": SessionOptions(master=master),
        "conf": SessionOptions(conf=conf_of(conf)),
        "packages": SessionOptions(
            packages=[name for several in packages for name in several.split(",") if name]
        ),
        "log_level": SessionOptions(log_level=log_level),
    }
    context = click.get_current_context()
    above, below = SessionOptions(), SessionOptions()
    for name, options in given.items():
        source = context.get_parameter_source(name)
        if source in (ParameterSource.DEFAULT_MAP, ParameterSource.DEFAULT):
            below = options.over(below)
        else:
            above = options.over(above)
    below = below.over(SessionOptions(conf=context.meta.get(PROJECT_CONF, {})))
    with options_of_process(above, below, functools.partial(say, err=True)):
        yield


#: The key under which the project file's settings of Spark are, in the context of a command.
PROJECT_CONF = "headrace.project.conf"
