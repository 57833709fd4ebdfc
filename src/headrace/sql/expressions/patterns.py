"""Regular expressions, and texts in parts between separators.

Spark's regular expressions are Java's, and Arrow has those of RE2. A pattern is read here, and written
out anew for RE2, if the two are sure to find the same. If not, it is refused with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import PipelineError, SqlError
from headrace.sql.expressions.compiling import Compiled, Evaluate, function
from headrace.sql.expressions.vectors import Frame, Vector, mapped
from headrace.sql.ir.expressions import Call

_LINE_ENDS = r"\n\r\x{85}\x{2028}\x{2029}"
#: What Java's classes are without its flags, as the inside of a class of RE2.
_CLASSES = {"d": "0-9", "w": "0-9A-Za-z_", "s": r" \t\n\x0B\f\r"}
_LETTERS = {"t": r"\t", "n": r"\n", "r": r"\r", "f": r"\f"}
_MOST_TIMES = 1000


class _Refused(Exception):
    """Says why a pattern is refused."""


@dataclass(frozen=True)
class _Piece:
    """A part of a pattern.

    Attributes:
        text: the part in RE2's words.
        may_be_empty: whether it may match no letter.
        has_group: whether it has a group that is read.
        is_end: whether it is the end of the text, with the line end before it.
        is_place: whether it is a place, and no letters.
    """

    text: str
    may_be_empty: bool = False
    has_group: bool = False
    is_end: bool = False
    is_place: bool = False


class Pattern:
    """A regular expression of Java's that RE2 understands alike.

    Args:
        text: the expression.

    Attributes:
        re2: the same for RE2, with the groups ``g1``, ``g2``, ….
        groups: the number of groups.
        may_be_empty: whether it may match no letter.
        has_end: whether it has a ``$``, which takes a line end with it.

    Raises:
        PipelineError: if it has something that the two may take differently.
    """

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self.groups = 0
        self.has_end = False
        try:
            whole = self._alternatives(0)
            if self._at < len(text):
                raise _Refused("a ) without its (")
        except _Refused as why:
            raise PipelineError(
                f"a view cannot have the regular expression {text!r}: {why}",
                remedy="write it with letters, classes, groups, | and repetitions, or use LIKE",
            ) from None
        self.re2, self.may_be_empty = whole.text, whole.may_be_empty

    # -- reading ------------------------------------------------------------------------------

    def _next(self) -> str:
        return self._text[self._at] if self._at < len(self._text) else ""

    def _take(self) -> str:
        letter = self._next()
        if not letter:
            raise _Refused("it ends too early")
        self._at += 1
        return letter

    def _takes(self, wanted: str) -> bool:
        if self._text.startswith(wanted, self._at):
            self._at += len(wanted)
            return True
        return False

    def _alternatives(self, depth: int) -> _Piece:
        ways = [self._sequence(depth)]
        while self._takes("|"):
            ways.append(self._sequence(depth))
        return _Piece(
            "|".join(one.text for one in ways),
            any(one.may_be_empty for one in ways),
            any(one.has_group for one in ways),
        )

    def _sequence(self, depth: int) -> _Piece:
        parts: list[_Piece] = []
        while self._next() not in {"", "|", ")"}:
            if parts and parts[-1].is_end:
                raise _Refused("$ stands before something else")
            parts.append(self._repeated(self._one(depth)))
        return _Piece(
            "".join(one.text for one in parts),
            all(one.may_be_empty for one in parts),
            any(one.has_group for one in parts),
        )

    def _one(self, depth: int) -> _Piece:
        letter = self._take()
        match letter:
            case "(":
                return self._group(depth)
            case "[":
                return self._class()
            case ".":
                return _Piece(f"[^{_LINE_ENDS}]")
            case "^":
                return _Piece(r"\A", True, is_place=True)
            case "$":
                return self._end(depth)
            case "\\":
                return self._escaped(self._take())
            case "*" | "+" | "?" | "{":
                raise _Refused(f"{letter} stands behind nothing")
            case _:
                return _Piece(_quoted(letter))

    def _end(self, depth: int) -> _Piece:
        if depth:
            raise _Refused("$ stands in a group")
        self.has_end = True
        return _Piece(rf"(?:\r\n|[{_LINE_ENDS}])?\z", True, is_end=True, is_place=True)

    def _group(self, depth: int) -> _Piece:
        is_read = not self._takes("?:")
        if is_read and self._next() == "?":
            raise _Refused("it has a group with a flag, a name, or a look ahead or behind")
        if is_read:
            self.groups += 1
        name = f"?P<g{self.groups}>" if is_read else "?:"
        inner = self._alternatives(depth + 1)
        if not self._takes(")"):
            raise _Refused("a ( without its )")
        return _Piece(f"({name}{inner.text})", inner.may_be_empty, is_read or inner.has_group)

    def _repeated(self, piece: _Piece) -> _Piece:
        least, times = self._times()
        if not times:
            return piece
        if piece.is_place:
            raise _Refused("a place is repeated")
        if piece.may_be_empty:
            raise _Refused("something that may be empty is repeated")
        if piece.has_group and times != "?":
            raise _Refused("a group that is read is repeated")
        if self._takes("?"):
            times += "?"
        if self._next() and self._next() in "*+?{":
            raise _Refused("a repetition is repeated, or gives nothing back")
        return _Piece(piece.text + times, least == 0, piece.has_group)

    def _times(self) -> tuple[int, str]:
        """Return the least number of a repetition, and its text; an empty text if there is none."""
        if self._next() and self._next() in "*+?":
            sign = self._take()
            return int(sign == "+"), sign
        found = re.compile(r"\{(\d+)(,(\d*))?\}").match(self._text, self._at)
        if found is None:
            return 0, ""
        if max(int(found[1]), int(found[3] or 0)) > _MOST_TIMES:
            raise _Refused(f"something is repeated more than {_MOST_TIMES} times")
        self._at = found.end()
        return int(found[1]), found[0]

    def _escaped(self, letter: str) -> _Piece:
        if letter.lower() in _CLASSES:
            negated = "^" if letter.isupper() else ""
            return _Piece(f"[{negated}{_CLASSES[letter.lower()]}]")
        if letter in _LETTERS:
            return _Piece(_LETTERS[letter])
        if letter in "Az":
            return _Piece(rf"\{letter}", True, is_place=True)
        if letter.isascii() and not letter.isalnum():
            return _Piece(_quoted(letter))
        raise _Refused(rf"it has \{letter}")

    def _class(self) -> _Piece:
        negated = "^" if self._takes("^") else ""
        items: list[str] = []
        while not self._takes("]"):
            items.append(self._item())
        if not items:
            raise _Refused("a class is empty")
        return _Piece(f"[{negated}{''.join(items)}]")

    def _item(self) -> str:
        first = self._in_class()
        if len(first) > 2 or self._next() != "-" or self._text[self._at + 1 : self._at + 2] == "]":
            return first
        self._take()
        last = self._in_class()
        if len(last) > 2 or last[-1] < first[-1]:
            raise _Refused("a range in a class ends before it begins")
        return f"{first}-{last}"

    def _in_class(self) -> str:
        letter = self._take()
        if letter == "[" or (letter == "&" and self._next() == "&"):
            raise _Refused(f"a class has {letter}")
        if letter != "\\":
            return _quoted(letter)
        escaped = self._take()
        if escaped in _CLASSES:
            return _CLASSES[escaped]
        if escaped in _LETTERS or not escaped.isascii() or escaped.isalnum():
            if escaped in _LETTERS and self._next() != "-":
                return _LETTERS[escaped]
            raise _Refused(rf"a class has \{escaped}")
        return _quoted(escaped)


def _quoted(letter: str) -> str:
    return (
        letter
        if letter.isalnum() or not letter.isascii()
        else f"\\{letter}"
        if (letter.isprintable() and not letter.isspace())
        else letter
    )


def _constant(call: Call, arg: Compiled, what: str) -> Any:
    """Return an argument that stands in the query.

    Raises:
        PipelineError: if it does not.
    """
    if arg.constant is None:
        raise PipelineError(
            f"a view cannot have {call.function} with {what} that is computed or NULL",
            remedy="write it as a constant",
        )
    return arg.constant


@function("regexp_like")
def _like(call: Call, args: Sequence[Compiled]) -> Evaluate:
    pattern = Pattern(_constant(call, args[1], "a pattern")).re2
    return _on_texts(args[0], lambda texts: pc.match_substring_regex(texts, pattern), call)


@function("regexp_extract")
def _extract(call: Call, args: Sequence[Compiled]) -> Evaluate:
    pattern = Pattern(_constant(call, args[1], "a pattern"))
    group = int(_constant(call, args[2], "a group"))
    if not 0 <= group <= pattern.groups:
        raise SqlError(
            f"the pattern has {pattern.groups} groups, and group {group} is asked for",
            condition="INVALID_PARAMETER_VALUE.REGEX_GROUP_INDEX",
            remedy="ask for a group that is there",
        )
    if group == 0 and pattern.has_end:
        raise PipelineError(
            "a view cannot have regexp_extract of a whole match whose pattern has $",
            remedy="put what is wanted into a group",
        )
    text = f"(?P<g0>{pattern.re2})"

    def extracted(texts: pa.Array) -> pa.Array:
        found = pc.struct_field(pc.extract_regex(texts, text), f"g{group}")
        none = pa.scalar("", pa.string())
        return pc.if_else(
            pc.is_valid(texts), pc.fill_null(found, none), pa.scalar(None, pa.string())
        )

    return _on_texts(args[0], extracted, call)


@function("regexp_replace")
def _replace(call: Call, args: Sequence[Compiled]) -> Evaluate:
    pattern = Pattern(_constant(call, args[1], "a pattern"))
    by = str(_constant(call, args[2], "a replacement"))
    start = 1 if len(args) < 4 else int(_constant(call, args[3], "a position"))
    if pattern.may_be_empty or pattern.has_end or start != 1 or "$" in by or "\\" in by:
        raise PipelineError(
            "a view cannot have regexp_replace with a pattern that may be empty or has $, with a "
            "position, or with a replacement that refers to groups",
            remedy="write a pattern that has at least one letter, and a plain replacement",
        )
    text = pattern.re2
    return _on_texts(
        args[0], lambda texts: pc.replace_substring_regex(texts, pattern=text, replacement=by), call
    )


def _on_texts(arg: Compiled, kernel: Callable[[pa.Array], pa.Array], call: Call) -> Evaluate:
    from headrace.sql.expressions.vectors import from_arrow

    return lambda frame: from_arrow(kernel(arg.evaluate(frame).values), call.type)


# -- parts between separators -----------------------------------------------------------------


@function("split_part")
def _split_part(call: Call, args: Sequence[Compiled]) -> Evaluate:
    return lambda frame: mapped(part_of, call.type, *(one.evaluate(frame) for one in args))


def part_of(text: str, separator: str, number: int) -> str:
    """Return a part of a text between separators: from 1, or from the end if it is negative.

    Raises:
        SqlError: for part 0.
    """
    if number == 0:
        raise SqlError(
            "split_part() counts from 1, and was asked for part 0",
            condition="INVALID_INDEX_OF_ZERO",
            remedy="ask for part 1 or more, or for a negative one, which counts from the end",
        )
    parts = text.split(separator) if separator else [text]
    at = number - 1 if number > 0 else len(parts) + number
    return parts[at] if 0 <= at < len(parts) else ""


@function("substring_index")
def _substring_index(call: Call, args: Sequence[Compiled]) -> Evaluate:
    def before(text: str, separator: str, count: int) -> str:
        if not separator or count == 0:
            return ""
        if count > 0:
            return separator.join(text.split(separator)[:count])
        parts = text.rsplit(separator, -count)
        return text if len(parts) <= -count else separator.join(parts[1:])

    def evaluate(frame: Frame) -> Vector:
        return mapped(before, call.type, *(one.evaluate(frame) for one in args))

    return evaluate
