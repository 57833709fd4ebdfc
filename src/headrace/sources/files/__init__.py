"""A source of files: JSON lines, CSV or Parquet; a list that is drained, or a directory that is watched.

``source`` is what a user declares; ``dividing`` says what comes after a position; ``tracking`` finds out
what has become of the files since, by the rules of ``matching``; ``known`` and ``catalog`` remember what
was read, and ``position`` says it as plain data. ``folders`` are the places where files are, ``opening``
and ``compression`` their bytes.
"""

from headrace.sources.files.source import Files

__all__ = ["Files"]
