"""What the documents say is run."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace import errors
from headrace.cli import main
from tests.support.pages import all_pages, programs
from tests.support.processes import wait_for

ROOT = Path(__file__).parents[2]


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


@pytest.mark.parametrize(
    "document",
    [
        "docs/tutorial.md",
        "docs/how-to/read-data.md",
        "docs/how-to/test-a-pipeline.md",
        "docs/how-to/use-operators.md",
        "docs/how-to/wait-and-order.md",
        "docs/how-to/duplicates.md",
        "docs/how-to/move-state.md",
        "docs/how-to/follow-the-load.md",
        "docs/how-to/change-the-shape-of-state.md",
        "docs/how-to/let-state-expire.md",
        "docs/how-to/keep-state.md",
        "docs/how-to/keep-transactions-whole.md",
        "docs/how-to/choose-a-storage.md",
        "docs/how-to/look-into-state.md",
        "docs/how-to/back-up-and-verify.md",
        "docs/how-to/read-a-stream-with-spark.md",
    ],
)
def test_a_page_of_blocks_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, document: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for program in programs(ROOT / document):
        code = compile(program.source(), document, "exec", dont_inherit=True)
        exec(code, {"__name__": "document"})


def headrace(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace.cli", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("document", ["README.md", "docs/how-to/write-fast-computations.md"])
def test_the_visits_pipeline_runs_and_resumes(tmp_path: Path, document: str) -> None:
    (tmp_path / "visits.py").write_text(blocks(document, "python")[0])
    data = tmp_path / "hits.jsonl"
    data.write_text(blocks("README.md", "json")[0])
    run = ["run", "visits.py", "--storage", "state/visits", "--runner", "inline"]
    first = headrace(tmp_path, *run)
    assert first.returncode == 0, first.stderr
    rows = [json.loads(line) for line in first.stdout.splitlines()]
    assert sorted((row["key"], row["timestamp"], row["value"]) for row in rows) == [
        ("/about", "2024-05-01T12:01:00Z", 1),
        ("/home", "2024-05-01T12:01:00Z", 2),
        ("/home", "2024-05-01T12:04:00Z", 1),
    ]
    for shown in blocks(document, "text")[:1]:
        assert sorted(shown.splitlines()) == sorted(first.stdout.splitlines())
    again = headrace(tmp_path, *run)
    assert (again.returncode, again.stdout) == (0, ""), again.stderr
    status = headrace(tmp_path, "status", "--storage", "state/visits")
    assert "computation visits: watermark end, 4 records, 0 late" in status.stdout


@contextlib.contextmanager
def started(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    with open(folder / f"{len(list(folder.glob('*-log')))}-log", "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace.cli", *arguments], cwd=folder, stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_the_commands_of_upgrading_do_what_their_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = "docs/how-to/upgrade-and-fail-over.md"
    (tmp_path / "clicks.py").write_text(blocks(document, "python")[0])
    told = [line for block in blocks(document, "text") for line in block.splitlines()]

    def of(line: str, *more: str) -> list[str]:
        assert line in told
        return [*line.split()[1:], *more]

    monkeypatch.chdir(tmp_path)
    status = of("headrace status --storage state/clicks")

    def until(said: str) -> None:
        wait_for(lambda: said in CliRunner().invoke(main, status).output)

    fast = ["--runner", "inline", "--rows", "100"]
    run = of("headrace run clicks.py --storage state/clicks", *fast)
    standby = of("headrace run clicks.py --storage state/clicks --standby", *fast)
    handover = of("headrace handover clicks.py --storage state/clicks", *fast)
    with started(tmp_path, *run) as old:
        until(" leads: since")
        with started(tmp_path, *standby, "--patience", "2") as waits:
            until(" stands by: since")
            with started(tmp_path, *handover) as new:
                assert old.wait(300) == 0
                until("epoch 2")
                new.kill()
                until("epoch 3")
                at = of("headrace stop --at-step 12000 --storage state/clicks")
                assert CliRunner().invoke(main, at).exit_code == 0
                until("stop after step 12000")
                stop = ["stop", "--storage", "state/clicks"]
                assert CliRunner().invoke(main, stop).exit_code == 0
                assert waits.wait(300) == 0
    logs = "".join(path.read_text() for path in sorted(tmp_path.glob("*-log")))
    assert "handed over to " in logs


def test_the_command_line_answers_with_its_exit_codes(tmp_path: Path) -> None:
    assert headrace(tmp_path, "status", "--storage", "nothing").returncode == 5
    assert headrace(tmp_path, "run").returncode == 2
    missing = headrace(tmp_path, "run", "missing.py", "--storage", "s", "--runner", "inline")
    assert missing.returncode == 4
    assert missing.stderr.startswith("[HR101] missing.py does not exist")


def test_every_error_is_in_the_reference_with_its_code() -> None:
    text = (ROOT / "docs/reference/errors.md").read_text()
    for name, kind in vars(errors).items():
        is_error = isinstance(kind, type) and issubclass(kind, errors.HeadraceError)
        if is_error and kind is not errors.HeadraceError:
            assert f"`{name}`" in text, name
            assert kind.code in text, kind.code


def prose(document: Path) -> str:
    """Return a page without its blocks of code."""
    return re.sub(r"^( *)(```+|~~~+).*?^\1\2 *$", "", document.read_text(), flags=re.DOTALL | re.M)


def anchors(document: Path) -> set[str]:
    """Return what a link can lead to within a page, as GitHub and the site name it."""
    found: dict[str, int] = {}
    for heading in re.findall(r"^#{1,6} +(.+?) *$", prose(document), re.MULTILINE):
        shown = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
    again = {f"{slug}-{number}" for slug, most in found.items() for number in range(1, most + 1)}
    return set(found) | again


def test_every_link_leads_to_a_file_and_to_a_heading_in_it() -> None:
    lost: list[str] = []
    for document in all_pages():
        links = re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)\)", prose(document))
        for link in links:
            path, _, anchor = link.partition("#")
            target = document.parent / path if path else document
            if not target.exists():
                lost.append(f"{document.relative_to(ROOT)}: {link}: no such file")
            elif anchor and (target.suffix != ".md" or anchor not in anchors(target)):
                lost.append(f"{document.relative_to(ROOT)}: {link}: no such heading")
    assert lost == []


def test_every_file_of_the_tests_that_a_page_names_is_there() -> None:
    for document in all_pages():
        for name in re.findall(
            r"`((?:tests|benchmarks)/[\w/.]+\.(?:py|md))`", document.read_text()
        ):
            assert (ROOT / name).exists(), f"{document.name}: {name}"
