"""The Python blocks on a page of the documentation, as the programs that they make up.

The blocks of a page are one program, in their order. What else there is to know about a block is in
a comment above it, which the page does not show:

- ``<!-- python: a new program -->``: this block does not build upon the ones before it.
- ``<!-- python: first`` … ``-->``: lines that the block needs, and a reader does not.
- ``<!-- python: refused [arg-type] -->``: type checkers refuse this block, mypy with these codes.
- ``<!-- python: unchecked, since … -->``: type checkers do not see this block, for this reason.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]

_COMMENT = re.compile(r"^ *<!-- python: (.*)$")
_FENCE = re.compile(r"^( *)(```+|~~~+) *\{?([\w-]*)\}?.*$")
_REFUSED = re.compile(r"refused ((?:\[[a-z-]+\] ?)+)-->")
_UNCHECKED = re.compile(r"unchecked, since (\S.*) -->")
#: What a block of Python may not call itself, since nothing would look at it.
OTHER_NAMES = {"py", "python3", "pycon", "python-repl", "doctest", "ipython", "code-block", "code"}


class PageError(Exception):
    """A page has a block or a comment that this module does not understand."""


@dataclasses.dataclass
class Block:
    """A block, with the comments above it.

    Attributes:
        lines: the code by its line on the page, from 1. Hidden lines are among them.
        shown: the first line that the page shows.
        anew: whether a program starts here.
        refused: codes of the errors that mypy must find.
        unchecked: why type checkers do not see it.
    """

    lines: dict[int, str]
    shown: int
    anew: bool = False
    refused: frozenset[str] = frozenset()
    unchecked: str = ""


@dataclasses.dataclass
class Program:
    """Blocks that are run and checked together."""

    page: Path
    blocks: list[Block]

    def source(self, blocks: Sequence[Block] | None = None) -> str:
        """Return the code of the blocks, each line where it is on the page."""
        lines: dict[int, str] = {}
        for block in self.blocks if blocks is None else blocks:
            lines |= block.lines
        return "".join(lines.get(number, "") + "\n" for number in range(1, max(lines) + 1))

    def checked(self) -> str:
        """Return what type checkers see."""
        seen = [block for block in self.blocks if not block.unchecked]
        return self.source(seen) if seen else ""


def all_pages() -> list[Path]:
    """Return every page of the repository that a user reads."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def programs(page: Path) -> list[Program]:
    """Return the programs on a page."""
    found: list[Program] = []
    for block in blocks(page):
        if block.anew or not found:
            found.append(Program(page, []))
        found[-1].blocks.append(block)
    return found


def blocks(page: Path) -> list[Block]:
    """Return the Python blocks on a page.

    Raises:
        PageError: if a comment is unknown or not above a block, or a block is not closed.
    """
    found: list[Block] = []
    numbered = iter(enumerate(page.read_text().splitlines(), 1))
    said: list[tuple[int, str]] = []
    hidden: dict[int, str] = {}
    for number, line in numbered:
        if comment := _COMMENT.match(line):
            said.append((number, comment[1]))
            if comment[1] == "first":
                hidden |= _until("-->", numbered, f"{page}:{number}")
        elif fence := _FENCE.match(line):
            indent, ticks, language = fence.groups()
            inside = _until(ticks, numbered, f"{page}:{number}")
            if language in OTHER_NAMES:
                raise PageError(f"{page}:{number}: call it python, not {language}")
            if language == "python":
                code = {at: text.removeprefix(indent) for at, text in inside.items()}
                found.append(_with_comments(Block(hidden | code, number + 1), said, page))
                said, hidden = [], {}
        elif said and line.strip():
            break
    if said:
        raise PageError(f"{page}:{said[0][0]}: this comment is not above a block of Python")
    return found


def _until(end: str, lines: Iterator[tuple[int, str]], place: str) -> dict[int, str]:
    """Return the lines before the one that closes a block or comment."""
    inside: dict[int, str] = {}
    for number, line in lines:
        if line.strip() == end:
            return inside
        inside[number] = line
    raise PageError(f"{place}: there is no {end} after it")


def _with_comments(block: Block, said: list[tuple[int, str]], page: Path) -> Block:
    """Return a block with what the comments above it say."""
    for number, comment in said:
        if comment == "a new program -->":
            block.anew = True
        elif refused := _REFUSED.fullmatch(comment):
            block.refused = frozenset(re.findall(r"\[([a-z-]+)\]", refused[1]))
        elif unchecked := _UNCHECKED.fullmatch(comment):
            block.unchecked = unchecked[1]
        elif comment != "first":
            raise PageError(f"{page}:{number}: nothing is known of {comment!r}")
    return block
