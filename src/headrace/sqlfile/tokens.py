"""The words of a file of SQL, each with its place, and where statements end."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.errors import PipelineError

#: What kinds of words there are: names (also quoted), texts, numbers, and everything else.
NAME, TEXT, NUMBER, SIGN = "name", "text", "number", "sign"


@dataclass(frozen=True)
class Word:
    """A word of a file.

    Attributes:
        kind: :data:`NAME`, :data:`TEXT`, :data:`NUMBER` or :data:`SIGN`.
        text: what it says, without quotes.
        start, end: the characters that it takes, the last one included.
        quoted: whether it is a name in quotes, and so no keyword.
    """

    kind: str
    text: str
    start: int
    end: int
    quoted: bool = False

    def is_(self, *keywords: str) -> bool:
        """Return whether it is one of some keywords or signs, in upper case."""
        return self.kind in (NAME, SIGN) and not self.quoted and self.text.upper() in keywords


class Script:
    """A text of SQL, and its name for errors.

    Args:
        text: the text.
        name: the file.
    """

    def __init__(self, text: str, name: str) -> None:
        self.text, self.name = text, name

    def place(self, at: int) -> str:
        """Return a place in words: ``FILE:LINE:COLUMN``, both from 1."""
        before = self.text[:at]
        return f"{self.name}:{before.count(chr(10)) + 1}:{at - (before.rfind(chr(10)) + 1) + 1}"

    def error(self, what: str, at: int, remedy: str) -> PipelineError:
        """Return an error with its place."""
        return PipelineError(what, place=self.place(at), remedy=remedy)

    def statements(self) -> Iterator[list[Word]]:
        """Yield the words of each statement, without the semicolon.

        Raises:
            PipelineError: for quotes and comments that do not end, and if sqlglot is not installed.
        """
        words: list[Word] = []
        for word in self._words():
            if word.is_(";"):
                if words:
                    yield words
                words = []
            else:
                words.append(word)
        if words:
            yield words

    def _words(self) -> Iterator[Word]:
        before: Word | None = None
        for word in self._parts(self.text, 0):
            if before is not None and _goes_on(before, word):
                before = Word(TEXT, f"{before.text}'{word.text}", before.start, word.end)
                continue
            if before is not None:
                yield before
            before = word
        if before is not None:
            yield before

    def _parts(self, text: str, start: int) -> Iterator[Word]:
        """Yield the words of a part of the text, of which some may belong together."""
        try:
            from sqlglot import tokenize
            from sqlglot.errors import TokenError
        except ImportError as error:
            raise PipelineError(
                f"files of SQL need a package that is not there: {error}",
                remedy='pip install "headrace[spark]"',
            ) from error
        try:
            tokens = tokenize(text, dialect="spark")
        except TokenError as error:
            raise PipelineError(
                f"a quote or a comment does not end: {error}",
                place=self.name,
                remedy="end it",
            ) from error
        end = 0
        for token in tokens:
            raw = text[token.start : token.end + 1]
            if token.token_type.name == "STRING" and _kind(raw) != TEXT:
                # What stands behind a word that sqlglot does not parse, such as EXPLAIN.
                yield from self._parts(text[end : token.end + 1], start + end)
            else:
                yield from _words_of(raw, token.text, start + token.start)
            end = token.end + 1


def _words_of(raw: str, text: str, start: int) -> list[Word]:
    """Return the words of a token: some that belong together, such as PRIMARY KEY, are one token."""
    kind = _kind(raw)
    if kind == NAME and raw[0] != "`":
        return [
            Word(NAME, found[0], start + found.start(), start + found.end() - 1)
            for found in re.finditer(r"\S+", raw)
        ]
    return [Word(kind, text, start, start + len(raw) - 1, raw[:1] == "`")]


def _goes_on(before: Word, word: Word) -> bool:
    """Return whether two texts are one: a quote within a text is written twice."""
    return before.kind == word.kind == TEXT and before.end + 1 == word.start


def _kind(raw: str) -> str:
    if raw[:1] in "'\"":
        return TEXT
    if raw[:1] == "`" or raw[:1].isalpha() or raw[:1] == "_":
        return NAME
    return NUMBER if raw[:1].isdigit() else SIGN
