"""Names of files: which are input, what suffixes and folders mean, and how names are stored.

A name is relative to the folder that all files of a source have in common, with ``/`` between its
parts.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import PurePosixPath
from typing import NamedTuple
from urllib.parse import unquote

from headrace.errors import PipelineError
from headrace.sources.formats import BY_SUFFIX, FormatName

#: Suffix → compression.
COMPRESSIONS = {
    ".gz": "gzip",
    ".gzip": "gzip",
    ".bz2": "bz2",
    ".zst": "zstd",
    ".lz4": "lz4",
    ".xz": "xz",
}
#: Suffixes of archives and compressed files that cannot be read.
UNREADABLE = (".zip", ".7z", ".tar", ".tgz", ".z", ".br", ".snappy", ".lzo", ".rar")
#: The value that Hive and Spark write into a folder's name for null.
HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
#: The part of a pattern that matches folders at any depth.
ANY_DEPTH = "**"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
_BRACES = re.compile(r"(?<!\[)\{([^{},/]*(?:,[^{},/]*)+)\}")
_AROUND_SLASHES = re.compile(r"(?<!\[)\{(?=[^{}]*,)[^{}]*/[^{}]*\}")
_ESCAPED = re.compile(r"\\(\\|x[0-9a-f]{2})")
_SURROGATE = re.compile("[\udc80-\udcff]|\\\\")


class NameEndings(NamedTuple):
    """What the suffixes of a name say.

    Attributes:
        format: the format of the content; None if no suffix names it.
        compression: how the file is compressed; None if it is not.
    """

    format: FormatName | None
    compression: str | None


def kind_of(name: str) -> NameEndings:
    """Return what the suffixes of a name say, such as those of ``hits.jsonl.gz``."""
    stem, ending = os.path.splitext(name.rpartition("/")[2].lower())
    compression = COMPRESSIONS.get(ending)
    if compression is not None:
        ending = os.path.splitext(stem)[1]
    return NameEndings(BY_SUFFIX.get(ending), compression)


def is_hidden(part: str) -> bool:
    """Return whether a file or folder of this name is not input, as in Hadoop and Spark.

    Names that start with ``.`` or ``_`` belong to files that are still being written, to markers
    such as ``_SUCCESS``, and to logs. A folder such as ``_day=3`` is a partition, and so is input.
    """
    return part.startswith(".") or (part.startswith("_") and "=" not in part)


def is_remote(path: str) -> bool:
    """Return whether a path is the location of a store, and not a path on this machine."""
    return _SCHEME.match(path) is not None


def escaped(name: str) -> str:
    """Return a name as text that JSON can hold: bytes that are not UTF-8 become ``\\xNN``."""
    return _SURROGATE.sub(
        lambda found: r"\\" if found[0] == "\\" else f"\\x{ord(found[0]) - 0xDC00:02x}", name
    )


def unescaped(text: str) -> str:
    """Return the name from which :func:`escaped` made a text."""
    return _ESCAPED.sub(
        lambda found: "\\" if found[1] == "\\" else chr(0xDC00 + int(found[1][1:], 16)), text
    )


def partition_columns(name: str) -> Iterator[tuple[str, str | None]]:
    """Yield the columns that a name's folders stand for: ``year=2026/month=01/x`` has two of them.

    None is null. Bytes that are not UTF-8 become surrogates, as in names of files.
    """
    for part in name.split("/")[:-1]:
        column, is_one, value = part.partition("=")
        if is_one and column:
            yield _unquoted(column), None if value == HIVE_NULL else _unquoted(value)


def _unquoted(text: str) -> str:
    return unquote(text, errors="surrogateescape")


class Pattern:
    """The files that a path stands for: one file, all files of a directory, or those that match.

    Attributes:
        base: the folder that names are relative to, as it was given: a path or a location.
        parts: what the parts of a name must match. A directory has one part, ``*``.
        is_folder: whether the path stands for all files of a directory.
        names_one: whether the path stands for at most one file.
        levels: the number of given parts that are matched.
        shown: the path as it was given.

    Args:
        path: a file, a directory, or a pattern with ``*``, ``?``, ``[…]``, ``{…,…}`` and ``**``, on
            this machine or in a store. A local name such as ``r[1].jsonl``, which would not match
            itself as a pattern, stands for the file of that name if it exists.
        is_folder: whether the path is a folder, as far as can be seen.

    Raises:
        PipelineError: for a pattern of hidden names, which are not input, and for braces around
            slashes.
    """

    def __init__(self, path: str, *, is_folder: bool) -> None:
        self.shown = escaped(path)
        self.is_folder = is_folder
        self.base, self.parts = _divided(path, is_folder)
        self.levels = len(self.parts)
        self.names_one = (
            not is_folder and self.levels == 1 and not _is_pattern(self.base, self.parts[0])
        )
        for part in self.parts[:-1] if self.levels == 1 else self.parts:
            if is_hidden(part):
                raise PipelineError(
                    f"{self.shown}: names that begin with '.' or '_' are not input",
                    place=self.shown,
                    remedy="they are of files that are still being written; give the files other names",
                )
        if self.parts[-1] == ANY_DEPTH:
            self.parts.append("*")  # the files in folders at any depth
        self._match = [_matcher(part) for part in self.parts]

    @property
    def is_deep(self) -> bool:
        """Whether files may lie in folders below the base."""
        return self.is_folder or len(self.parts) > 1

    def start(self) -> frozenset[int]:
        """Return the state of matching before the first part of a name."""
        return self._closed({0})

    def enters(self, state: Collection[int], folder: str) -> frozenset[int]:
        """Return the state after the name of a folder; empty if nothing in the folder can match."""
        if is_hidden(folder):
            return frozenset()
        if self.is_folder:
            return frozenset(state) if "=" in folder else frozenset()
        last = len(self.parts) - 1
        after: set[int] = set()
        for at in state:
            if at < last and self.parts[at] == ANY_DEPTH:
                after.add(at)
            elif at < last and self._match[at](folder):
                after.add(at + 1)
        return self._closed(after)

    def takes(self, state: Collection[int], file: str) -> bool:
        """Return whether a file of that name matches, in a folder with this state."""
        if self.names_one:
            return file == self.parts[0]
        if is_hidden(file):
            return False
        last = len(self.parts) - 1
        return last in state and self._match[last](file) is not None

    def matches(self, name: str) -> bool:
        """Return whether a whole name matches."""
        *folders, file = name.split("/")
        state = self.start()
        for folder in folders:
            state = self.enters(state, folder)
        return bool(state) and self.takes(state, file)

    def _closed(self, state: set[int]) -> frozenset[int]:
        """Return a state with what can follow a ``**``, which may match no folder at all."""
        closed = set(state)
        for at in range(len(self.parts) - 1):
            if at in closed and self.parts[at] == ANY_DEPTH:
                closed.add(at + 1)
        return frozenset(closed)


def has_magic(path: str) -> bool:
    """Return whether a path, or a part of one, contains pattern characters."""
    return glob.has_magic(path) or _BRACES.search(path) is not None


def _matcher(part: str) -> Callable[[str], object]:
    """Return a function that matches a name against a part of a pattern."""
    return re.compile("|".join(map(fnmatch.translate, alternatives(part)))).match


def alternatives(part: str) -> list[str]:
    """Return the patterns without braces that a pattern with braces stands for.

    >>> alternatives("{a,b{1,2}}.csv")
    ['a.csv', 'b1.csv', 'b2.csv']
    """
    found = _BRACES.search(part)
    if found is None:
        return [part]
    some = (f"{part[: found.start()]}{one}{part[found.end() :]}" for one in found[1].split(","))
    return [*dict.fromkeys(one for each in some for one in alternatives(each))]


def _is_pattern(base: str, part: str) -> bool:
    """Return whether a part of a path is a pattern, and not the name of something that exists."""
    if not has_magic(part):
        return False
    is_name = not is_remote(base) and os.path.lexists(os.path.join(base, part))
    return not is_name or _matcher(part)(part) is not None


def _divided(path: str, is_folder: bool) -> tuple[str, list[str]]:
    """Return the folder that a path starts with, and the parts that are to be matched."""
    found = _SCHEME.match(path)
    start, rest = (found[0], path[found.end() :]) if found else ("", path)
    if is_folder:
        return path.rstrip("/") if found else path, ["*"]
    if _AROUND_SLASHES.search(rest) and (found or not os.path.lexists(path)):
        raise PipelineError(
            f"{escaped(path)}: braces cannot hold a '/'",
            place=escaped(path),
            remedy="let them stand for a part of one name: a/{b,c}/*.csv",
        )
    parts = PurePosixPath(rest).parts
    named: list[str] = []
    for part in parts[:-1]:
        if _is_pattern(start + _joined(named, start), part):
            break
        named.append(part)
    return start + _joined(named, start), list(parts[len(named) :])


def _joined(named: list[str], start: str) -> str:
    return str(PurePosixPath(*named)) if named else ("" if start else ".")
