"""A source of files: JSON lines, CSV or Parquet, from a fixed list or a directory that is watched.

``source`` contains what a user declares. ``dividing`` finds what comes after a position.
``tracking`` finds out what has happened to the files since, by the rules of ``matching``. ``known``
and ``catalog`` remember what was read, and ``position`` expresses it as plain data. ``folders`` are
the places where files are; ``opening`` and ``compression`` read their bytes.
"""

from headrace.sources.files.source import Files

__all__ = ["Files"]
