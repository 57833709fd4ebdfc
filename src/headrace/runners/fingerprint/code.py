"""What bytecode says, apart from lines and docstrings, and the names and modules it refers to."""

from __future__ import annotations

import dis
import re
from collections.abc import Iterator
from types import CodeType
from typing import Any, NamedTuple

_CONSTS = re.compile(
    b"[%s]" % b"".join(re.escape(bytes([op])) for op in dis.hasconst if op < 256), re.DOTALL
)
_EXTENDED, _STORE_NAME = dis.opmap["EXTENDED_ARG"], dis.opmap["STORE_NAME"]
_IMPORT = dis.opmap["IMPORT_NAME"]
_HAS_DOCSTRING = 0x4000000  # in co_flags, since Python 3.13


class Import(NamedTuple):
    """An import within code: ``from ..module import names``, or ``import module`` without names."""

    level: int
    module: str
    names: tuple[str, ...]


def parts_of_code(code: CodeType) -> tuple[tuple[Any, ...], list[Any]]:
    """Return the content of code without its constants, and these in the order of their use.

    A docstring is a constant that no instruction uses. It shifts the indices of other constants, so
    indices are left out.
    """
    words, consts = bytearray(code.co_code), []
    ops = code.co_code[::2]
    for found in _CONSTS.finditer(ops):
        at = found.start()
        if not _is_docstring(code, ops, at):
            consts.append(code.co_consts[_argument(words, ops, at)])
        _clear_argument(words, ops, at)
    code_parts = (
        bytes(words),
        repr([code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars]),
        code.co_argcount,
        code.co_kwonlyargcount,
        code.co_posonlyargcount,
        code.co_flags & ~_HAS_DOCSTRING,
        code.co_exceptiontable,
    )
    return code_parts, consts


def _argument(words: bytearray, ops: bytes, at: int) -> int:
    value, shift = words[2 * at + 1], 8
    while at > 0 and ops[at - 1] == _EXTENDED:
        at -= 1
        value |= words[2 * at + 1] << shift
        shift += 8
    return value


def _clear_argument(words: bytearray, ops: bytes, at: int) -> None:
    words[2 * at + 1] = 0
    while at > 0 and ops[at - 1] == _EXTENDED:
        at -= 1
        words[2 * at + 1] = 0


def _is_docstring(code: CodeType, ops: bytes, at: int) -> bool:
    """Return whether a constant becomes the ``__doc__`` of a class or a module."""
    after = at + 1
    if after >= len(ops) or ops[after] != _STORE_NAME:
        return False
    return code.co_names[code.co_code[2 * after + 1]] == "__doc__"


def within(code: CodeType) -> Iterator[CodeType]:
    """Yield the code and all code nested in it."""
    todo = [code]
    while todo:
        code = todo.pop()
        yield code
        todo += [const for const in code.co_consts if isinstance(const, CodeType)]


def names_of(code: CodeType) -> list[str]:
    """Return the names that the code and code nested in it refer to."""
    return sorted({name for part in within(code) for name in part.co_names})


def texts_of(code: CodeType) -> list[str]:
    """Return the texts in the code and in code nested in it, except docstrings."""
    return sorted({c for part in within(code) for c in parts_of_code(part)[1] if type(c) is str})


def imports_of(code: CodeType) -> list[Import]:
    """Return the imports that the code and code nested in it do when they run."""
    found = {
        item for part in within(code) if _IMPORT in part.co_code[::2] for item in _imports_in(part)
    }
    return sorted(found)


def _imports_in(code: CodeType) -> Iterator[Import]:
    before: list[Any] = [0, None]
    for step in dis.get_instructions(code):
        if step.opcode == _IMPORT:
            level, names = before
            yield Import(level, step.argval, tuple(names or ()))
        if step.opcode != _EXTENDED:
            before = [before[1], step.argval]
