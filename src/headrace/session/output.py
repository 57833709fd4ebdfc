"""What the JVM of a session prints, and what its Python workers print through it.

The prints of a user's handler belong on the terminal. What Spark prints as it starts and ends does
not: it goes to a file.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from headrace.storage.local import private

#: Longest piece of a line that is passed on at once.
_MOST = 1 << 16
#: Where Spark's own Python processes are at work. At their end, each traceback of theirs has a frame there.
_SPARKS = ("pyspark/daemon.py", "pyspark/worker.py", "pyspark/worker_util.py")
_TRACEBACK = "Traceback (most recent call last):"
#: How a process ends that Spark no longer needs, also in the middle of a run.
_LOST = ("BrokenPipeError", "ConnectionResetError", "EOFError")


class JvmOutput:
    """Passes on what the JVM prints, in a thread of its own, for as long as the JVM lives.

    Until :meth:`show`, all of it goes to the file. From then on it goes to standard error. But a
    traceback by which a process of Spark's says that it has lost its connection goes to the file:
    Spark no longer needs that process. After :meth:`end`, all tracebacks of such processes do, and
    after the next mark, everything does.

    Args:
        pipe: the file descriptor of the JVM's output.
        file: where it goes when it is not shown. The file is created when it is needed.
    """

    def __init__(self, pipe: int, file: Path) -> None:
        self._pipe = pipe
        self._file = file
        self._shown = False
        self._ending = False
        self._mark = ""
        self._arrived = threading.Event()
        self._thread = threading.Thread(target=self._pass_on, name="headrace-jvm", daemon=True)
        self._thread.start()
        # While Python shuts down, no other thread may be writing to standard error.
        atexit.register(self.hide)

    def show(self) -> None:
        """Show on standard error what comes from now on."""
        self._shown, self._ending = True, False

    def hide(self) -> None:
        """Let what comes from now on go to the file."""
        self._shown = False

    def end(self) -> None:
        """Expect the end of Spark's processes."""
        self._ending = True

    @contextlib.contextmanager
    def marked(self, mark: str, within_s: float) -> Iterator[None]:
        """Wait at the end of the block until a line has arrived, which the block lets print.

        So everything that was printed before it has been passed on.
        """
        self._arrived.clear()
        self._mark = mark
        yield
        self._arrived.wait(within_s)

    def finished(self, within_s: float) -> None:
        """Wait until the JVM has closed its output."""
        self._thread.join(within_s)

    def hidden_lines(self, most: int) -> list[str]:
        """Return the last lines that went to the file, without the frames of the JVM's stack."""
        try:
            text = self._file.read_text(errors="replace")
        except OSError:
            return []
        lines = [line for line in text.splitlines() if line.strip()]
        return [line for line in lines if not line.lstrip().startswith("at ")][-most:]

    def _pass_on(self) -> None:
        held: list[str] = []  # tracebacks, until it is clear whose they are
        for line in self._lines():
            mark = self._mark_in(line)
            if mark:
                before = line.rstrip("\r\n").removesuffix(mark)
                if before:  # it was printed without an end of line
                    self._pass(f"{before}\n", held)
                self._ended(held)
                self._arrived.set()
            else:
                self._pass(line, held)
        self._release(held)

    def _pass(self, line: str, held: list[str]) -> None:
        """Show a line, hide it, or hold it with a traceback that it belongs to."""
        if not self._shown:
            self._hide(line)
        elif held or line.startswith(_TRACEBACK):
            held.append(line)
            if _are_whole(held):
                self._release(held)
        else:
            self._print(line)

    def _ended(self, held: list[str]) -> None:
        """Hide what comes after a session's end, and a traceback of which half has come."""
        if self._ending:
            self._shown = False
            self._hide("".join(held))
            held.clear()

    def _lines(self) -> Iterator[str]:
        """Yield the lines that the JVM prints, each as soon as it is whole or very long."""
        begun = b""
        with contextlib.suppress(OSError):
            while data := os.read(self._pipe, _MOST):
                *whole, begun = (begun + data).split(b"\n")
                if len(begun) >= _MOST:
                    whole, begun = [*whole, begun], b""
                for line in whole:
                    yield f"{line.decode(errors='replace')}\n"
        if begun:
            yield f"{begun.decode(errors='replace')}\n"

    def _mark_in(self, line: str) -> str:
        mark = self._mark
        return mark if mark and line.rstrip("\r\n").endswith(mark) else ""

    def _release(self, held: list[str]) -> None:
        """Pass tracebacks on, or hide them."""
        is_sparks = _names_spark(held) if self._ending else _is_lost_connection(held)
        text = "".join(held)
        held.clear()
        if is_sparks:
            self._hide(text)
        elif text:
            self._print(text)

    def _hide(self, text: str) -> None:
        if not text:
            return
        with (
            contextlib.suppress(OSError),
            open(self._file, "a", encoding="utf-8", opener=private) as file,
        ):
            file.write(text)

    def _print(self, text: str) -> None:
        # Standard error may be closed, or be another one than at the start.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(text)
            sys.stderr.flush()


def _are_whole(held: list[str]) -> bool:
    """Return whether all tracebacks have come to their last lines.

    Two processes may print theirs at the same time. The frames between are indented.
    """
    begun = sum(line.startswith(_TRACEBACK) for line in held)
    return sum(not line.startswith(" ") for line in held) == 2 * begun


def _names_spark(lines: list[str]) -> bool:
    """Return whether a frame is in Spark's own code."""
    return any(place in line.replace("\\", "/") for line in lines for place in _SPARKS)


def _is_lost_connection(lines: list[str]) -> bool:
    """Return whether all tracebacks say that Spark's own code has lost a connection."""
    frames = [line for line in lines if line.startswith("  File ")]
    ends = [line for line in lines if not line.startswith((" ", _TRACEBACK))]
    return (
        bool(frames and ends)
        and all(_names_spark([line]) for line in frames)
        and all(line.startswith(_LOST) for line in ends)
    )
