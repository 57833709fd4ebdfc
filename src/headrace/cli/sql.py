"""The command that runs a pipeline which is nothing but a file of SQL."""

from __future__ import annotations

import functools
from typing import Any

import click

from headrace.checkpoints.planned_views import planned_views
from headrace.cli.common import say, storage_if_needed, typed_errors, with_options
from headrace.cli.loading import check_digest
from headrace.cli.run import RUN_OPTIONS, START_OPTIONS, check_start, run_loaded
from headrace.cli.session import session_options
from headrace.pipeline import Pipeline
from headrace.session import spark_session
from headrace.sqlfile import read_sql_file


@click.command()
@click.argument("file", type=click.Path())
@storage_if_needed
@with_options(RUN_OPTIONS)
@with_options(START_OPTIONS)
@click.option(
    "--explain",
    is_flag=True,
    help="Show how the views are maintained and what state they keep, and run nothing.",
)
def sql(
    file: str,
    storage: str | None,
    explain: bool,
    standby: bool,
    take_over: bool,
    **options: Any,
) -> None:
    """Run or resume the pipeline that the SQL of FILE declares, until its input has ended.

    FILE has CREATE TABLE, CREATE VIEW, CREATE MATERIALIZED VIEW, CREATE SINK and INSERT INTO. EXPLAIN
    in it, or --explain, shows how views are maintained. Other options are those of "run".
    """
    check_start(standby, take_over)
    if storage is None and not explain:
        raise click.UsageError("Missing option '--storage': where the pipeline's state is.")
    with typed_errors():
        declared = read_sql_file(file)
        if explain:
            session = {name: options[name] for name in ("master", "conf", "packages", "log_level")}
            with session_options(**session):
                say(declared.explained(spark_session()))
            return
    run_loaded(
        lambda: declared.pipeline(planned=planned_views(storage or "")),
        storage=storage or "",
        **options,
        standby=standby,
        take_over=take_over,
        reload=functools.partial(load_again, file, storage or ""),
    )


def load_again(file: str, storage: str, digest: str) -> Pipeline:
    """Return the pipeline of a file of SQL as it is now.

    Raises:
        PipelineError: if the file has another digest, or does not declare a pipeline.
    """
    check_digest(file, digest)
    return read_sql_file(file).pipeline(planned=planned_views(storage))


COMMANDS = [sql]
