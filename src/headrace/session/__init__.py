"""The Spark session of this process: the active one, or one that Headrace starts.

A runner needs a session, and so does a source that reads a streaming DataFrame. Both ask here, so
that they get the same one. A session that Headrace starts has the settings that its jobs need. It
is quiet: Spark's log is in a file, whose path is logged.

PySpark is imported when a session is needed, so that commands which need none start fast.
"""

from __future__ import annotations

from headrace.session.options import SessionOptions
from headrace.session.session import options_of_process, spark_session

__all__ = ["SessionOptions", "options_of_process", "spark_session"]
