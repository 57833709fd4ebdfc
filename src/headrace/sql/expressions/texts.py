"""Functions of texts, in Arrow where it has them, and row by row elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import PipelineError
from headrace.sql.expressions.compiling import Compiled, Evaluate, function, unsupported
from headrace.sql.expressions.vectors import Frame, Vector, mapped
from headrace.sql.ir.expressions import Call
from headrace.sql.ir.types import SqlType


def _arrow(call: Call, args: Sequence[Compiled], kernel: Callable[..., pa.Array]) -> Evaluate:
    """Return the evaluation of an Arrow function, which is NULL if an argument is."""

    def evaluate(frame: Frame) -> Vector:
        return _vector(kernel(*(one.evaluate(frame).values for one in args)), call.type)

    return evaluate


def _vector(array: pa.Array, kind: SqlType) -> Vector:
    from headrace.sql.expressions.vectors import from_arrow

    return from_arrow(array, kind)


def _rows(call: Call, args: Sequence[Compiled], act: Callable[..., Any]) -> Evaluate:
    """Return the evaluation of a Python function of each row."""
    return lambda frame: mapped(act, call.type, *(one.evaluate(frame) for one in args))


def _check_texts(call: Call, args: Sequence[Compiled]) -> None:
    if any(one.type.name == "binary" for one in args):
        raise unsupported(call)


# -- case and length --------------------------------------------------------------------------


@function("upper", "lower")
def _letters(call: Call, args: Sequence[Compiled]) -> Evaluate:
    is_upper = call.function == "upper"
    ascii_case = pc.ascii_upper if is_upper else pc.ascii_lower
    slow = _rows(call, args, str.upper if is_upper else str.lower)

    def evaluate(frame: Frame) -> Vector:
        values = args[0].evaluate(frame).values
        if pc.all(pc.string_is_ascii(values), min_count=0).as_py() is not False:
            return Vector(ascii_case(values))
        # beyond ASCII, a letter may become several, which Arrow does not know
        return slow(frame)

    return evaluate


@function("length")
def _length(call: Call, args: Sequence[Compiled]) -> Evaluate:
    act = pc.binary_length if args[0].type.name == "binary" else pc.utf8_length
    return _arrow(call, args, lambda values: act(values).cast(pa.int32()))


@function("octet_length", "bit_length")
def _bytes(call: Call, args: Sequence[Compiled]) -> Evaluate:
    by = 8 if call.function == "bit_length" else 1
    return _arrow(call, args, lambda v: pc.multiply(pc.binary_length(v), by).cast(pa.int32()))


# -- parts ------------------------------------------------------------------------------------


@function("substring")
def _substring(call: Call, args: Sequence[Compiled]) -> Evaluate:
    start, length = args[1].constant, args[2].constant
    if args[0].type.name == "string" and start is not None and length is not None and start >= 0:
        begin = max(start - 1, 0)
        end = begin + max(length, 0)
        one = args[:1]
        return _arrow(call, one, lambda values: pc.utf8_slice_codeunits(values, begin, end))
    return _rows(call, args, part)


def part(text: Any, start: int, length: int) -> Any:
    """Return a part of a text, as SQL's ``substring`` does.

    Args:
        text: a text, or bytes.
        start: the first place, from 1; 0 is as 1; if negative, from the end.
        length: how many places. Those before the text count.
    """
    begin = start - 1 if start > 0 else (len(text) + start if start < 0 else 0)
    end = min(begin + max(length, 0), len(text))
    return text[max(begin, 0) : max(end, 0)]


_TRIMS: dict[str, tuple[Callable[..., pa.Array], Callable[[str, str], str]]] = {
    "trim": (pc.utf8_trim, str.strip),
    "trim_left": (pc.utf8_ltrim, str.lstrip),
    "trim_right": (pc.utf8_rtrim, str.rstrip),
}


@function(*_TRIMS)
def _trim(call: Call, args: Sequence[Compiled]) -> Evaluate:
    _check_texts(call, args)
    fast, slow = _TRIMS[call.function]
    if len(args) == 1:
        return _arrow(call, args, lambda values: fast(values, characters=" "))
    return _rows(call, args, lambda text, letters: slow(text, letters) if letters else text)


@function("repeat")
def _repeat(call: Call, args: Sequence[Compiled]) -> Evaluate:
    return _rows(call, args, lambda text, times: text * max(times, 0))


@function("reverse")
def _reverse(call: Call, args: Sequence[Compiled]) -> Evaluate:
    _check_texts(call, args)
    return _rows(call, args, lambda text: text[::-1])


@function("pad_left", "pad_right")
def _pad(call: Call, args: Sequence[Compiled]) -> Evaluate:
    _check_texts(call, args)
    is_left = call.function == "pad_left"

    def padded(text: str, length: int, by: str) -> str:
        missing = length - len(text)
        if missing <= 0 or not by:
            return text[: max(length, 0)]
        filling = (by * (missing // len(by) + 1))[:missing]
        return filling + text if is_left else text + filling

    return _rows(call, args, padded)


# -- joining and replacing --------------------------------------------------------------------


@function("concat")
def _concat(call: Call, args: Sequence[Compiled]) -> Evaluate:
    if not call.type.is_text:
        raise unsupported(call)
    empty = pa.scalar(b"" if call.type.name == "binary" else "", call.type.arrow)
    return _arrow(call, args, lambda *parts: pc.binary_join_element_wise(*parts, empty))


@function("concat_ws")
def _concat_ws(call: Call, args: Sequence[Compiled]) -> Evaluate:
    def evaluate(frame: Frame) -> Vector:
        by, *parts = (one.evaluate(frame).values.to_pylist() for one in args)
        rows = zip(*parts, strict=True) if parts else [()] * len(frame)
        joined = [
            None if between is None else between.join(_texts_in(row))
            for between, row in zip(by, rows, strict=True)
        ]
        return Vector(pa.array(joined, pa.string()))

    return evaluate


def _texts_in(parts: Iterable[str | list[str | None] | None]) -> Iterator[str]:
    """Iterate over the texts among some values and in their arrays."""
    for part in parts:
        if isinstance(part, list):
            yield from _texts_in(part)
        elif part is not None:
            yield part


@function("replace")
def _replace(call: Call, args: Sequence[Compiled]) -> Evaluate:
    return _rows(call, args, lambda text, old, new: text.replace(old, new) if old else text)


# -- finding ----------------------------------------------------------------------------------

_FINDS: dict[str, tuple[Callable[..., pa.Array], Callable[[Any, Any], bool]]] = {
    "starts_with": (pc.starts_with, lambda text, other: text.startswith(other)),
    "ends_with": (pc.ends_with, lambda text, other: text.endswith(other)),
    "contains": (pc.match_substring, lambda text, other: other in text),
}


@function(*_FINDS)
def _finds(call: Call, args: Sequence[Compiled]) -> Evaluate:
    fast, slow = _FINDS[call.function]
    wanted = args[1].constant
    if wanted is not None:
        return _arrow(call, args[:1], lambda values: fast(values, wanted))
    return _rows(call, args, slow)


@function("instr")
def _instr(call: Call, args: Sequence[Compiled]) -> Evaluate:
    return _rows(call, args, lambda text, other: text.find(other) + 1)


@function("locate")
def _locate(call: Call, args: Sequence[Compiled]) -> Evaluate:
    other, text, start = args

    def place(other: str, text: str, start: int) -> int:
        if start < 1:
            return 0
        return text.find(other, start - 1) + 1 if other else 1

    def evaluate(frame: Frame) -> Vector:
        where = start.evaluate(frame)
        texts = (other.evaluate(frame), text.evaluate(frame))
        found = mapped(place, call.type, *texts, where)
        if where.valid is None:
            return found
        # without a start the place is 0, whatever the texts are
        mask = found.mask | ~where.valid
        return Vector(np.where(where.valid, found.values, 0).astype(np.int32), mask)

    return evaluate


@function("ascii")
def _ascii(call: Call, args: Sequence[Compiled]) -> Evaluate:
    return _rows(call, args, lambda text: ord(text[0]) if text else 0)


@function("chr")
def _chr(call: Call, args: Sequence[Compiled]) -> Evaluate:
    return _rows(call, args, lambda code: "" if code < 0 else chr(code % 256))


@function("like")
def _like(call: Call, args: Sequence[Compiled]) -> Evaluate:
    escape = call.option("escape", "\\")
    pattern = args[1].constant
    if pattern is not None:
        expression = like_pattern(pattern, escape)
        return _arrow(call, args[:1], lambda values: pc.match_substring_regex(values, expression))
    known: dict[str, re.Pattern[str]] = {}

    def matches(text: str, pattern: str) -> bool:
        if pattern not in known:
            known[pattern] = re.compile(like_pattern(pattern, escape).replace(r"\z", r"\Z"))
        return known[pattern].match(text) is not None

    return _rows(call, args, matches)


def like_pattern(pattern: str, escape: str) -> str:
    r"""Return a pattern of LIKE as a regular expression of RE2.

    Raises:
        PipelineError: if something else than ``%``, ``_`` or the escape itself is escaped.

    Example::

        assert like_pattern("a%", "\\") == r"(?s)\Aa.*\z"
    """
    out, at = [], 0
    while at < len(pattern):
        letter = pattern[at]
        if letter == escape:
            at += 1
            if at == len(pattern) or pattern[at] not in {"%", "_", escape}:
                raise PipelineError(
                    f"the pattern {pattern!r} of LIKE has {escape!r} before something that needs none",
                    remedy=f"write {escape * 2!r} for the letter itself",
                )
            out.append(re.escape(pattern[at]))
        elif letter == "%":
            out.append(".*")
        elif letter == "_":
            out.append(".")
        else:
            out.append(re.escape(letter))
        at += 1
    return rf"(?s)\A{''.join(out)}\z"
