"""Log records as lines of JSON, for whatever collects logs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from headrace.errors.printable import json_printable, without_secrets
from headrace.protocol.step_summary import StepSummary

#: The attribute of a record that holds what is announced.
_ANNOUNCED = "headrace_announced"


def announce(text: str, **facts: str) -> None:
    """Print what a user has asked for and needs whole, such as an address with its token.

    It goes to standard error as text, or as a line of JSON if the log is JSON.

    Args:
        text: what it is.
        facts: what is announced, by the field of the line.
    """
    loggers = (logging.getLogger("headrace"), logging.getLogger())
    handlers = {handler for logger in loggers for handler in logger.handlers}
    as_json = [handler for handler in handlers if isinstance(handler.formatter, JsonLines)]
    record = logging.LogRecord("headrace", logging.INFO, "", 0, text, None, None)
    setattr(record, _ANNOUNCED, facts)
    for handler in as_json:
        handler.handle(record)
    if not as_json:
        print(f"{text}: {', '.join(facts.values())}", file=sys.stderr, flush=True)


class RunFacts:
    """What a run knows about itself, for each line of its log. It is a listener of the run.

    Args:
        pipeline: the pipeline's name.

    Example::

        from headrace.logs import JsonLines, RunFacts

        facts = RunFacts("hits")
        handler = logging.StreamHandler()
        handler.setFormatter(JsonLines(facts))
        logging.getLogger("headrace").addHandler(handler)
        with hr.run(p, storage="state/hits", runner="inline", listeners=[facts.after_step]) as job:
            job.drain()
    """

    def __init__(self, pipeline: str) -> None:
        self._facts: dict[str, Any] = {"pipeline": pipeline}

    def __call__(self) -> Mapping[str, Any]:
        """Return the facts."""
        return self._facts

    def after_step(self, done: StepSummary) -> None:
        """Note a step that was committed."""
        self._facts = {**self._facts, "step": done.step, "epoch": done.head.epoch}


class JsonLines(logging.Formatter):
    """Formats each log record as one line of JSON.

    A line has ``at`` (UTC), ``level``, ``logger`` and ``message``; the facts of the run: ``pipeline``
    and, after the first step, ``step`` (the last one that was committed) and ``epoch``; and
    ``traceback``, if an error was logged. Passwords in addresses are left out.

    Args:
        facts: returns what else each line says; see :class:`RunFacts`.

    Example::

        from headrace.logs import JsonLines

        logging.getLogger("headrace").addHandler(handler := logging.StreamHandler())
        handler.setFormatter(JsonLines())
    """

    def __init__(self, facts: Callable[[], Mapping[str, Any]] = dict) -> None:
        super().__init__()
        self.facts = facts

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": without_secrets(record.getMessage()),
            **self.facts(),
            **getattr(record, _ANNOUNCED, {}),
        }
        if record.exc_info:
            line["traceback"] = without_secrets(self.formatException(record.exc_info))
        return json_printable(msgspec.json.encode(line).decode())
