"""Files of state that a process has opened, kept from one change of the layout to the next.

A migration comes in rounds, and the new owner of a bin needs nearly the same files in each. Opening
them is what a round costs on a store that is far away.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.runfiles.format import FileRef, RunReader

#: At most this many files stay open beside those in use.
_MOST_FILES = 4_096


class OpenFiles:
    """The files of one storage that a process has opened.

    Tasks of a process run in threads of their own, and all of them use this. So between any two
    looks at it, files may have been added or forgotten. A file that is forgotten is opened again.

    Attributes:
        by_name: their readers. Whoever opens a file adds it.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, RunReader] = {}

    def note_use(self, used: Iterable[FileRef], most: int) -> None:
        """Note which files are used. Forget those that were not used for longest, beyond bounds.

        Args:
            used: the files.
            most: how many bytes of content are kept.
        """
        names = dict.fromkeys(ref.name for ref in used)
        by_name = self.by_name
        for name in names:
            reader = by_name.pop(name, None)
            if reader is not None:
                by_name[name] = reader
        known = list(by_name.items())
        held = sum(reader.memory_bytes for _, reader in known)
        others = [(name, reader) for name, reader in known if name not in names]
        many = len(known)
        for name, reader in others:
            if held <= most and many <= _MOST_FILES:
                break
            held -= reader.memory_bytes
            many -= 1
            by_name.pop(name, None)

    def keep(self, needed: Iterable[FileRef], most: int) -> None:
        """Forget all other files, and of the needed ones the content beyond a bound in bytes."""
        names = {ref.name for ref in needed}
        kept = {name: reader for name, reader in list(self.by_name.items()) if name in names}
        held = sum(reader.memory_bytes for reader in kept.values())
        for reader in kept.values():
            if held <= most:
                break
            held -= reader.memory_bytes
            reader.release()
        self.by_name = kept
