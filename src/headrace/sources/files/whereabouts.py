"""Finds where the files of a division are today, since they may have been renamed or compressed.

Everything is listed once and each file opened once, however many files have moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace.sources.files.folders import Facts, Folder
from headrace.sources.files.names import escaped, unescaped
from headrace.sources.files.opening import has_print, open_file, prints_of_head, typed_errors
from headrace.sources.files.position import FileRead, PartRead

#: Returns the digest of the first ``n`` bytes of a file.
_Head = Callable[[int], str]


class Whereabouts:
    """Finds files that have other names by now.

    Args:
        folder: where the files are.
        listed: yields all files that are input, with their facts if the listing includes them.
        is_text: whether the files are text.
    """

    def __init__(
        self,
        folder: Folder,
        listed: Callable[[], Iterable[tuple[str, Facts | None]]],
        *,
        is_text: bool,
    ) -> None:
        self._folder = folder
        self._listed = listed
        self._is_text = is_text
        self._ids: dict[str, str] | None = None
        self._directories: dict[str, dict[str, list[str]]] = {}
        self._heads: dict[tuple[int, str], list[str]] = {}
        self._sizes: set[int] = set()
        self._heads_of: list[tuple[str, _Head]] | None = None

    def of(self, part: PartRead, entry: FileRead | None) -> str:
        """Return the (escaped) name that a part's file has today; its old one if none is found.

        Args:
            part: the part.
            entry: what is known of its file.
        """
        raw = unescaped(part.name)
        facts = self._folder.facts(raw)
        if not part.id or (facts is not None and facts.id == part.id):
            return part.name
        by_id = self._by_id().get(part.id)
        known = entry if entry is not None and entry.head else None
        others = [] if by_id is None else [by_id]
        found = self._first_of([*others, *self._in_directory_of(raw).get(part.id, ())], known)
        if found is None and known is not None:
            found = self._first_of(self._beginning_as(known.head_bytes, known.head), known)
        return part.name if found is None else escaped(found)

    def _by_id(self) -> dict[str, str]:
        if self._ids is None:
            found: dict[str, str] = {}
            for name, facts in sorted(self._listed(), key=lambda of: of[0]):
                now = facts or self._folder.facts(name)
                if now is not None:
                    found.setdefault(now.id, name)
            self._ids = found
        return self._ids

    def _in_directory_of(self, name: str) -> dict[str, list[str]]:
        """Return id → names of everything in a file's directory, whether or not it is input."""
        directory = name[: name.rfind("/") + 1]
        if directory not in self._directories:
            self._directories[directory] = self._folder.names_by_id(directory)
        return self._directories[directory]

    def _first_of(self, names: Iterable[str], entry: FileRead | None) -> str | None:
        """Return the first name whose file starts with what was read: an inode may be reused."""
        return next((of for of in names if entry is None or self._has_print(of, entry)), None)

    def _has_print(self, name: str, entry: FileRead) -> bool:
        with typed_errors(self._folder.shown(name)):
            try:
                with open_file(self._folder, name, "look") as file:
                    return has_print(entry, file, is_text=self._is_text)
            except FileNotFoundError:
                return False  # it was listed, and is gone

    def _beginning_as(self, size: int, head: str) -> list[str]:
        if self._heads_of is None:
            self._heads_of = [
                (name, of) for name in sorted(self._by_id().values()) if (of := self._head_of(name))
            ]
        if size not in self._sizes:
            self._sizes.add(size)
            for name, head_of in self._heads_of:
                self._heads.setdefault((size, head_of(size)), []).append(name)
        return self._heads.get((size, head), [])

    def _head_of(self, name: str) -> _Head | None:
        with typed_errors(self._folder.shown(name)):
            try:
                with open_file(self._folder, name, "look") as file:
                    return prints_of_head(file, is_text=self._is_text)
            except FileNotFoundError:
                return None
