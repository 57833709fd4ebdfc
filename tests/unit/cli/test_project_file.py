"""A project file gives options their defaults; whatever it cannot mean is refused with the place."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headrace.cli import main, run
from headrace.keyspace.layout import Layout
from headrace.ledger.ledger import Ledger
from headrace.session.options import submit_arguments
from headrace.session.session import _process
from headrace.storage import LocalStore

FILE = Path(__file__).with_name("pipeline_file.py")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder with a pipeline, and a folder below it in which commands are typed."""
    (tmp_path / "drawn.py").write_text(FILE.read_text())
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    monkeypatch.delenv("HEADRACE_STORAGE", raising=False)
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    return tmp_path


def headrace(*words: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, list(words), env=env)


def bins_in(storage: Path) -> int:
    head = Ledger(LocalStore(storage)).open()
    assert head is not None
    return len(Layout.from_wire(head.layout))


def test_a_command_without_options_runs_the_pipeline_of_the_project_on_its_storage(
    folder: Path,
) -> None:
    (folder / "headrace.toml").write_text(
        'pipeline = "drawn.py"\nstorage = "state"\n[run]\nrunner = "inline"\nbins = 32\n'
    )
    ran = headrace("run")
    assert ran.exit_code == 0, ran.output
    assert bins_in(folder / "state") == 32, "paths are those of the project file's folder"
    status = headrace("status")
    assert status.exit_code == 0 and "counted" in status.output


def test_pyproject_has_the_same_settings_in_its_table(folder: Path) -> None:
    (folder / "pyproject.toml").write_text(
        '[tool.headrace]\npipeline = "drawn.py"\nstorage = "state"\n'
        '[tool.headrace.run]\nrunner = "inline"\n'
    )
    assert headrace("run").exit_code == 0
    assert bins_in(folder / "state") == 256


def test_a_pyproject_without_the_table_is_passed_over_for_a_file_above(folder: Path) -> None:
    (folder / "below" / "pyproject.toml").write_text('[project]\nname = "other"\n')
    (folder / "headrace.toml").write_text('storage = "nowhere"\n')
    assert "nowhere is not there" in headrace("status").output


def test_the_command_line_comes_before_the_environment_and_this_before_the_project_file(
    folder: Path,
) -> None:
    (folder / "headrace.toml").write_text(
        'pipeline = "drawn.py"\nstorage = "state"\n[run]\nrunner = "inline"\nbins = 16\n'
    )
    asked = {"HEADRACE_RUN_BINS": "64", "HEADRACE_STORAGE": str(folder / "by-environment")}
    assert headrace("run", env=asked).exit_code == 0
    assert bins_in(folder / "by-environment") == 64
    typed = str(folder / "typed")
    assert headrace("run", "--bins", "128", "--storage", typed, env=asked).exit_code == 0
    assert bins_in(folder / "typed") == 128
    assert not (folder / "state").exists()


def test_each_option_has_a_variable_and_handover_goes_by_those_of_run_after_its_own() -> None:
    options = {
        name: {option.name: option.envvar for option in command.params}
        for name, command in main.commands.items()
    }
    assert options["run"]["workers"] == ["HEADRACE_RUN_WORKERS"]
    assert options["run"]["options"] == ["HEADRACE_RUN_SET"], "as the option is called"
    assert options["handover"]["bins"] == ["HEADRACE_HANDOVER_BINS", "HEADRACE_RUN_BINS"]
    assert options["status"]["storage"] == "HEADRACE_STORAGE"
    assert options["drain-hosts"]["dry_run"] == ["HEADRACE_DRAIN_HOSTS_DRY_RUN"]


def test_handover_takes_the_table_of_run_and_then_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "headrace.toml").write_text(
        'pipeline = "drawn.py"\nstorage = "state"\n'
        "[run]\nbins = 16\nrows = 7\n[handover]\nbins = 32\nwait = 1.5\n"
    )
    seen: dict[str, Any] = {}
    monkeypatch.setattr(run, "run_loaded", lambda *_, **options: seen.update(options))
    ran = headrace("handover")
    assert ran.exit_code == 0, ran.output
    assert (seen["bins"], seen["rows"], seen["handover_timeout"]) == (32, 7, timedelta(seconds=1.5))


@pytest.mark.parametrize(
    ("text", "place", "what"),
    [
        ('storrage = "x"\n', "storrage", "did you mean storage"),
        ("[run]\nworker = 2\n", "run.worker", "did you mean workers"),
        ("[rum]\nworkers = 2\n", "rum", "did you mean run"),
        ("[state.gett]\nsection = 's'\n", "state.gett", "did you mean get?"),
        ("workers = 2\n", "workers", "write it below [run]"),
        ('[run]\nworkers = "many"\n', "run.workers", "'many' is not a valid integer"),
        ("[run]\nworkers = 0\n", "run.workers", "0 is not in the range x>=1"),
        ('[run]\nrunner = "sparkle"\n', "run.runner", "'sparkle' is not one of"),
        ('[run]\nkeep-running = "yes"\n', "run.keep-running", "is not true or false"),
        ("[run]\nworkers = true\n", "run.workers", "not true or false"),
        ('packages = "org.a:b:1"\n', "packages", "is not a list"),
        ("run = 3\n", "run", "its options are a table"),
        ('conf = "spark.a=b"\n', "conf", "Spark's settings are a table"),
        ("[conf]\nspark.a = [1]\n", "conf.spark.a", "is not a text or a number"),
        ("storage = \n", "", "Invalid value"),
    ],
)
def test_what_a_project_file_cannot_mean_is_refused_with_its_place_and_what_was_meant(
    folder: Path, text: str, place: str, what: str
) -> None:
    (folder / "headrace.toml").write_text(text)
    found = headrace("status", "--storage", "x")
    assert found.exit_code == 4, found.output
    line = f"{folder / 'headrace.toml'}: {place}" if place else str(folder / "headrace.toml")
    assert f"at: {line}\n" in found.output
    assert what in found.output


def test_a_key_of_pyproject_is_named_with_its_whole_table(folder: Path) -> None:
    (folder / "pyproject.toml").write_text("[tool.headrace]\nworkers = 2\n")
    assert "write it below [tool.headrace.run]" in headrace("status").output


def test_a_project_file_that_is_named_is_taken_and_no_other(folder: Path) -> None:
    (folder / "headrace.toml").write_text('storrage = "x"\n')
    (folder / "other.toml").write_text('storage = "elsewhere"\n')
    found = headrace("--project", str(folder / "other.toml"), "status")
    assert found.exit_code == 5 and "elsewhere is not there" in found.output


def test_options_of_a_group_reach_its_commands_before_the_project_file_does(folder: Path) -> None:
    (folder / "headrace.toml").write_text(
        'pipeline = "drawn.py"\nstorage = "state"\n[run]\nrunner = "inline"\n'
        '[migrations.show]\noutput = "json"\nstorage = "other"\n'
    )
    assert headrace("run").exit_code == 0
    assert "other" in headrace("migrations", "show", "1").output
    assert "other" not in headrace("migrations", "--storage", "../state", "show", "1").output


class CommandRequest:
    """What a command asks of Spark's session."""

    def __init__(self) -> None:
        self.arguments = ""
        self.level: str | None = None


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandRequest]:
    """Loads no pipeline, but notes what a session would be started with at that moment."""
    seen = CommandRequest()

    def load(target: str) -> None:
        import os

        environment = os.environ.get("PYSPARK_SUBMIT_ARGS", "")
        seen.arguments = submit_arguments(_process.above, environment, _process.below)
        seen.level = _process.above.log_level or _process.below.log_level
        raise SystemExit(0)

    monkeypatch.setattr(run, "load_pipeline", load)
    yield seen
    assert _process.above.arguments() == [], "the options end with the command"


def test_options_of_the_session_are_merged_one_by_one_in_the_order_of_precedence(
    folder: Path, asked: CommandRequest
) -> None:
    (folder / "headrace.toml").write_text(
        'pipeline = "drawn.py"\nstorage = "state"\nmaster = "local[1]"\nlog-level = "info"\n'
        'packages = ["org.a:a:1"]\n[conf]\nspark.driver.memory = "1g"\n"spark.b" = 1\nspark.c = true\n'
    )
    spark = {
        "PYSPARK_SUBMIT_ARGS": "--conf spark.b=2 --conf spark.d=2 --packages org.b:b:1 pyspark-shell"
    }
    words = [
        "run",
        "--conf",
        "spark.d=3 4",
        "--packages",
        "org.c:c:1,org.b:b:1",
        "--log-level",
        "debug",
    ]
    assert headrace(*words, env=spark).exit_code == 0
    given = final(asked.arguments)
    assert given == {
        "name": "headrace",
        "master": "local[1]",
        "spark.driver.memory": "1g",
        "spark.b": "2",
        "spark.c": "true",
        "spark.d": "3 4",
        "packages": "org.b:b:1,org.c:c:1",
        "spark.ui.showConsoleProgress": "false",
    }
    assert asked.level == "debug"
    assert headrace("run", "--master", "local[2]").exit_code == 0
    assert final(asked.arguments)["master"] == "local[2]"
    assert asked.level == "info"


def final(arguments: str) -> dict[str, str]:
    """Return what spark-submit makes of its arguments: the last of each takes precedence."""
    import shlex

    words, found = shlex.split(arguments), {}
    assert words.pop() == "pyspark-shell"
    for option, value in zip(words[::2], words[1::2], strict=True):
        if option == "--conf":
            key, _, text = value.partition("=")
            found[key] = text
        else:
            found[option.removeprefix("--")] = value
    return found


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--conf", "spark.a"], "has no value"),
        (["--conf", "driver.memory=1g"], "names of settings begin with spark."),
        (["--packages", "org.a:b"], "GROUP:ARTIFACT:VERSION"),
        (["--master", "--help"], "is not a master"),
    ],
)
def test_an_option_of_the_session_that_cannot_be_meant_is_refused_before_anything_starts(
    folder: Path, words: list[str], what: str
) -> None:
    found = headrace("run", "drawn.py", "--storage", "state", *words)
    assert found.exit_code == 4
    assert "[HR101]" in found.output and what in found.output
    assert "starting Spark" not in found.output
