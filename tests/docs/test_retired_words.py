"""One word per thing: words that the glossary has replaced do not come back.

Identifiers of the package are taken apart at underscores and capitals, and so are the texts of the
command line. Prose and names of tests are not checked here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import click
import pytest

from headrace.cli import main

SOURCE = Path(__file__).parents[2] / "src" / "headrace"

#: What to say in the place of a word that is retired.
RETIRED = {
    "absorb": "apply changes",
    "anew": "again",
    "asked": "requested",
    "beat": "heartbeat",
    "beats": "heartbeats",
    "catching": "backfill",
    "course": "layout state",
    "crew": "worker set",
    "crews": "worker sets",
    "doomed": "garbage",
    "draw": "build",
    "drawing": "graph, or pipeline",
    "drawn": "graph, or built",
    "fading": "decay",
    "forever": "without limit",
    "furthest": "newest, or latest",
    "halt": "scheduled stop",
    "heart": "heartbeat",
    "heir": "successor",
    "home": "preferred host",
    "homes": "preferred hosts",
    "intake": "source poller",
    "knob": "option",
    "knobs": "options",
    "lease": "heartbeat settings",
    "leave": "flush, or remove",
    "let": "evict, or allow",
    "light": "uncheckpointed",
    "lose": "evict",
    "mend": "fix",
    "mended": "fixed",
    "obey": "apply",
    "outrun": "superseded",
    "pace": "batch size, or rate",
    "pulse": "loop progress",
    "recall": "load the intent",
    "recalled": "intent loaded",
    "redraw": "change the topology",
    "regain": "prepare the replay",
    "regained": "replay prepared",
    "rehearsal": "warm-up",
    "rehearse": "warm up",
    "reign": "leadership",
    "replays": "is a backfill",
    "said": "the text",
    "says": "type name",
    "stand": "set the key",
    "standing": "control state",
    "steered": "steered by a command",
    "stretch": "span, or run",
    "stretches": "spans, or runs",
    "tell": "report, or handle",
    "told": "reported, or what it is that was told",
    "tried": "attempts",
    "tries": "attempts",
    "try": "attempt",
    "untold": "unreported",
    "vigil": "watcher",
    "who": "the noun that is meant",
    "wish": "decision",
}

#: (file, identifier): why a word is right there.
ALLOWED = {
    # Names of the standard library, and of stored files.
    ("sources/files/*.py", "tell"): "a method of files",
    ("pipeline/source.py", "replays"): "an attribute of Source, public since 0.1",
    ("sources/spark_stream.py", "replays"): "an attribute of Source, public since 0.1",
    # Deprecated names.
    ("__init__.py", "Lease"): "the name in 0.1",
    ("errors/__init__.py", "TryAbandoned"): "the name in 0.1",
    ("coordinator/settings.py", "max_tries"): "the name in 0.1",
    ("job.py", "lease"): "the name in 0.1",
    ("testing/harness.py", "drawing"): "the name in 0.1",
    # Words that mean something else there.
    ("state/tables/index.py", "home"): "where a row of a hash table belongs",
    ("state/tables/index.py", "homes"): "where rows of a hash table belong",
    ("state/tables/index.py", "_homes"): "where rows of a hash table belong",
    ("session/*", "home"): "the folder of Java or Spark",
    ("nexmark/draws.py", "drawn"): "random numbers",
    ("nexmark/harness/picture.py", "draw*"): "a picture",
    ("nexmark/*.py", "*pace"): "how fast events come",
    ("nexmark/*.py", "Pace"): "how fast events come",
    ("nexmark/*.py", "*said"): "the results that the benchmark publishes",
    ("nexmark/*.py", "*SAID"): "the results that the benchmark publishes",
    ("driver/heartbeat.py", "_try_to_write"): "a verb",
}


def words(name: str) -> list[str]:
    """Take an identifier apart.

    >>> words("_TriesOf_HTTPtell")
    ['tries', 'of', 'http', 'tell']
    """
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return [part.lower() for part in parts]


def names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield what a module defines: functions, classes, arguments, variables and attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno
            case _:
                pass


def is_allowed(file: str, name: str) -> bool:
    return any(fnmatch(file, of) and fnmatch(name, which) for of, which in ALLOWED)


def found_in(file: str, tree: ast.AST) -> list[str]:
    return [
        f"{file}:{line}: {name}: say {RETIRED[word]!r} in the place of {word!r}"
        for name, line in names(tree)
        for word in words(name)
        if word in RETIRED and not is_allowed(file, name)
    ]


def test_no_identifier_has_a_retired_word() -> None:
    found: list[str] = []
    for path in sorted(SOURCE.rglob("*.py")):
        file = str(path.relative_to(SOURCE))
        found += found_in(file, ast.parse(path.read_text()))
        found += [f"{file}: say {RETIRED[w]!r}" for w in words(path.stem) if w in RETIRED]
    found = [line for line in found if line != "nexmark/pace.py: say 'batch size, or rate'"]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("code", ["def tell(): ...", "for try_ in x: ...", "a.isDrawn = lease = 1"])
def test_a_retired_word_is_found_wherever_a_name_is_made(code: str) -> None:
    assert found_in("driver/some.py", ast.parse(code))


def texts(command: click.Command, at: str) -> Iterator[tuple[str, str]]:
    """Yield the help of a command, of its options and of its commands, and where it stands."""
    yield at, command.help or ""
    for parameter in command.params:
        yield f"{at} {parameter.name}", " ".join(parameter.opts)
        yield f"{at} {parameter.name}", getattr(parameter, "help", None) or ""
    if isinstance(command, click.Group):
        for name, part in command.commands.items():
            yield from texts(part, f"{at} {name}")


#: Words that are retired as names, and that a sentence may well have.
VERBS = {
    "asked",
    "draw",
    "drawn",
    "home",
    "leave",
    "let",
    "light",
    "lose",
    "pace",
    "said",
    "says",
    "stand",
    "stretch",
    "tell",
    "try",
    "tries",
}


def test_no_text_of_the_command_line_has_a_retired_word() -> None:
    found = [
        f"{at}: say {RETIRED[word]!r} in the place of {word!r}: {text}"
        for at, text in texts(main, "headrace")
        if not at.startswith("headrace nexmark")
        for word in words(text)
        if word in RETIRED.keys() - VERBS
    ]
    assert not found


def test_each_exception_is_needed() -> None:
    used = {
        (of, which)
        for path in SOURCE.rglob("*.py")
        for name, _ in names(ast.parse(path.read_text()))
        if RETIRED.keys() & set(words(name))
        for of, which in ALLOWED
        if fnmatch(str(path.relative_to(SOURCE)), of) and fnmatch(name, which)
    }
    assert not sorted(ALLOWED.keys() - used)
