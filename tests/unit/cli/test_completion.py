"""What the shell proposes after Tab."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

import headrace as hr
from headrace.cli import main
from tests.unit.cli.pipeline_file import pipeline


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a pipeline's storage in ``state``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_STORAGE", raising=False)
    with hr.run(pipeline(), storage=tmp_path / "state", runner="inline") as job:
        job.drain()
    return tmp_path


def proposed(*words: str, begun: str = "", shell: type[ShellComplete] = ZshComplete) -> list[str]:
    completion = shell(main, {}, "headrace", "_HEADRACE_COMPLETE")
    return [
        item.value if item.type == "plain" else f"<{item.type}>"
        for item in completion.get_completions(list(words), begun)
    ]


@pytest.mark.parametrize("shell", [BashComplete, ZshComplete, FishComplete])
def test_a_script_for_each_shell_is_there(shell: type[ShellComplete]) -> None:
    script = shell(main, {}, "headrace", "_HEADRACE_COMPLETE")
    if shell is not BashComplete:  # which would start bash, to ask for its version
        assert "_HEADRACE_COMPLETE" in script.source()


def test_commands_and_their_options_are_proposed() -> None:
    assert "status" in proposed(begun="st")
    assert "--master" in proposed("run", begun="--ma")


def test_python_files_are_proposed_and_the_names_in_them_without_running_them(folder: Path) -> None:
    (folder / "one.py").write_text(
        "raise SystemExit('it was run')\ndef pipeline(a=1): ...\ndef needs(a): ...\n"
        "other: int = 3\n_own = another = 4\n"
    )
    (folder / "two.txt").write_text("")
    assert proposed("run", begun="on") == ["one.py"]
    assert proposed("run", begun="./on") == ["./one.py"]
    assert proposed("run", begun="one.py:") == ["one.py:pipeline", "one.py:other", "one.py:another"]
    assert proposed("run", begun="one.py:o") == ["one.py:other"]
    assert proposed("run", begun="two.txt:") == []
    assert proposed("run", begun="none/") == []


def test_the_shell_itself_walks_through_folders(folder: Path) -> None:
    assert proposed("run", begun="sta") == ["<file>"]
    assert proposed("status", "--storage", begun="st") == ["<dir>"]
    assert proposed("status", "--storage", begun="s3://b") == []


STORED = [
    (["state", "scan"], ["count"]),
    (["watermark", "why"], ["count", "items"]),
    (["watermark", "bins"], ["count"]),
    (["remove"], ["count"]),
    (["run", "x.py", "--reopen"], ["items"]),
    (["migrations", "show"], []),
]


@pytest.mark.parametrize(("words", "names"), STORED)
def test_names_come_from_the_storage(words: list[str], names: list[str]) -> None:
    assert proposed(words[0], *words[1:]) == [], "no storage is named"
    command = [words[0], *words[1:2], "--storage", "state", *words[2:]]
    if words[0] in ("remove", "run"):
        command = [words[0], "--storage", "state", *words[1:]]
    assert proposed(*command) == names


def test_the_storage_may_be_that_of_the_environment_or_of_the_project_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "headrace.toml").write_text('storage = "state"\n')
    assert proposed("state", "scan", begun="c") == ["count"]
    (folder / "headrace.toml").write_text("= not toml\n")
    assert proposed("state", "scan") == [], "and nothing is printed"
    monkeypatch.setenv("HEADRACE_STORAGE", "state")
    assert proposed("state", "scan") == ["count"]


def test_a_name_that_was_given_is_not_proposed_again() -> None:
    assert proposed("remove", "--storage", "state", "count") == []


def test_steps_that_can_be_opened_are_proposed_the_newest_first() -> None:
    steps = proposed("checkpoint", "verify", "--storage", "state", "--step")
    assert len(steps) > 1
    assert steps == sorted(steps, key=int, reverse=True)
    assert proposed("state", "diff", "--storage", "state") == steps


def test_migrations_are_proposed_the_newest_first(folder: Path) -> None:
    with hr.run(pipeline(), storage=folder / "moved", runner="inline", workers=1) as job:
        job.rescale(2).wait()
        job.rescale(1).wait()
    assert proposed("migrations", "abort", "--storage", "moved") == ["2", "1"]


def test_a_storage_that_is_damaged_or_gone_proposes_nothing(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for manifest in (folder / "state").rglob("*"):
        if manifest.is_file():
            manifest.write_bytes(b"x")
    assert proposed("state", "scan", "--storage", "state") == []
    assert proposed("state", "scan", "--storage", "gone") == []
    assert not (folder / "gone").exists()
    assert capfd.readouterr() == ("", "")
