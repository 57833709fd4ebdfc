"""Type checkers accept what users write, with the types inferred, and refuse what would fail.

What users write is in ``accepted.py``, in ``examples`` and in the documentation's blocks of Python.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.support.pages import ROOT, PageError, all_pages, blocks, programs
from tests.support.type_checkers import Checker, Finding, of_mypy, of_pyright
from tests.support.typed_pages import Stored, complaints, stored

HERE = Path(__file__).parent
ACCEPTED, REFUSED, COMMENTS = HERE / "accepted.py", HERE / "refused.py", HERE / "comments.md"
EXAMPLES = [
    files
    for folder in sorted((ROOT / "examples").glob("*/"))
    if (files := sorted(folder.glob("*.py")))
]
#: A page of code for PySpark, whose types are partial. Tests on Spark run all of its blocks.
RUN_ON_SPARK = "bring-your-statefulprocessor.md"
CHECKERS = {"mypy": of_mypy, "pyright": of_pyright}


@dataclasses.dataclass(frozen=True)
class Checked:
    """What one type checker found, in everything at once."""

    name: str
    findings: list[Finding]
    pages: list[Stored]
    comments: list[Stored]

    def lines(self, file: Path) -> set[int]:
        """Return the lines with errors in a file."""
        return {item.line for item in self.findings if item.file == file}


@pytest.fixture(scope="module", params=CHECKERS)
def checked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checked:
    """Everything, checked in one go: most of the time goes to the library that it imports."""
    checker: Checker = CHECKERS[request.param]
    modules = tmp_path_factory.mktemp("modules")
    # The gallery's blocks are pieces of its files, word for word, and the files are checked.
    own = [page for page in all_pages() if page.parent.name != "gallery"]
    pages, comments = stored(own, modules), stored([COMMENTS], modules)
    first = [ACCEPTED, REFUSED, *(module.file for module in [*pages, *comments])]
    findings = checker([first, *EXAMPLES], tmp_path_factory.mktemp("scratch"))
    given = {file.resolve() for files in [first, *EXAMPLES] for file in files}
    assert not [item for item in findings if item.file not in given]
    return Checked(request.param, findings, pages, comments)


def test_what_users_write_is_accepted(checked: Checked) -> None:
    assert not checked.lines(ACCEPTED)


def test_mistakes_are_refused_where_they_are(checked: Checked) -> None:
    lines = REFUSED.read_text().splitlines()
    marked = {number for number, line in enumerate(lines, 1) if line.endswith("# refused")}
    assert checked.lines(REFUSED) == marked


def test_every_block_on_every_page_is_accepted_or_refused_as_the_page_says(
    checked: Checked,
) -> None:
    assert len(checked.pages) > 15
    assert not [
        said
        for module in checked.pages
        for said in complaints(module, checked.findings, codes=checked.name == "mypy")
    ]


def test_every_file_of_the_examples_is_accepted(checked: Checked) -> None:
    files = {file for folder in EXAMPLES for file in folder}
    assert files == set((ROOT / "examples").rglob("*.py"))
    assert not [item for item in checked.findings if item.file in files]


def test_no_block_of_a_page_is_hidden_from_type_checkers() -> None:
    hidden = [
        (str(page.relative_to(ROOT)), block.unchecked)
        for page in all_pages()
        for block in blocks(page)
        if block.unchecked and page.name != RUN_ON_SPARK
    ]
    assert hidden == []


def test_the_comments_above_blocks_do_what_they_say(checked: Checked) -> None:
    codes = checked.name == "mypy"
    whole, second = checked.comments
    assert not complaints(whole, checked.findings, codes=codes)
    assert not complaints(second, checked.findings, codes=codes)
    (refused,) = [block for block in whole.program.blocks if block.refused]
    found = [item for item in checked.findings if item.line not in refused.lines]
    assert complaints(whole, found, codes=codes) == [
        f"{COMMENTS}:{refused.shown}: refused [arg-type, attr-defined], found []"
    ]
    refused.refused = frozenset()
    said = complaints(whole, checked.findings, codes=codes)
    assert {line.split(": ")[0] for line in said} == {f"{COMMENTS}:{line}" for line in (14, 15)}


def test_hidden_lines_are_run_and_checked_where_they_are_on_the_page() -> None:
    whole, second = programs(COMMENTS)
    assert "math" not in whole.source() and "nobody_knows" not in second.checked()
    lines = COMMENTS.read_text().splitlines()
    for number, line in enumerate(second.source().splitlines()):
        assert not line or lines[number].strip() == line
    assert "import math" in second.source() and "eighth" in second.checked()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<!-- python: skipped -->\n```python\n1\n```\n", "nothing is known of"),
        ("<!-- python: unchecked, since -->\n```python\n1\n```\n", "nothing is known of"),
        ("<!-- python: refused -->\n```python\n1\n```\n", "nothing is known of"),
        ("<!-- python: a new program -->\n\nA text.\n```python\n1\n```\n", "is not above a block"),
        ("<!-- python: first\n1\n```python\n2\n```\n", "there is no -->"),
        ("```python\n1\n", "there is no ```"),
        ("```pycon\n>>> 1\n```\n", "call it python, not pycon"),
    ],
)
def test_a_page_with_a_comment_or_block_that_says_nothing_is_refused(
    tmp_path: Path, text: str, problem: str
) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(PageError, match=problem):
        blocks(page)
