"""What type checkers find in the documentation's blocks of Python."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from tests.support.pages import ROOT, Program, programs
from tests.support.type_checkers import Finding


@dataclasses.dataclass(frozen=True)
class Stored:
    """A program as a module, whose lines are those of its page."""

    file: Path
    program: Program


def stored(pages: Sequence[Path], folder: Path) -> list[Stored]:
    """Write the programs of pages as modules."""
    modules: list[Stored] = []
    for page in pages:
        name = "_".join(page.relative_to(ROOT).with_suffix("").parts).replace("-", "_")
        for number, program in enumerate(programs(page), 1):
            file = folder / f"{name}_{number}.py"
            file.write_text(program.checked())
            modules.append(Stored(file, program))
    return modules


def complaints(module: Stored, findings: Sequence[Finding], *, codes: bool) -> list[str]:
    """Return what is wrong in a program: errors, and refused blocks that have others or none.

    Args:
        module: the program.
        findings: what a type checker found, in whatever file.
        codes: whether refused blocks name that type checker's codes.
    """
    here = [item for item in findings if item.file == module.file.resolve()]
    said: list[str] = []
    for block in module.program.blocks:
        found = [item for item in here if item.line in block.lines]
        here = [item for item in here if item not in found]
        if not block.refused:
            said += [f"{module.program.page}:{item.line}: {item.text}" for item in found]
        elif {item.code for item in found} != block.refused if codes else not found:
            wanted = ", ".join(sorted(block.refused))
            said.append(f"{module.program.page}:{block.shown}: refused [{wanted}], found {found}")
    return [*said, *(f"{module.program.page}:{item.line}: {item.text}" for item in here)]
