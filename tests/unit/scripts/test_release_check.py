"""What is built for a release is checked before it is published."""

from __future__ import annotations

import zipfile
from pathlib import Path

import psutil
import pytest
from scripts import release_check
from scripts.release_check import NotReleasable, check_version, check_wheel, five_minutes, run

from tests.support.waiting import until

ROOT = Path(__file__).parents[3]
INFO = "headrace-0.1.0.dist-info"
METADATA = """Metadata-Version: 2.4
Name: headrace
Version: 0.1.0
Project-URL: Homepage, https://example.org
Project-URL: Documentation, https://example.org
Project-URL: Changelog, https://example.org
Project-URL: Issues, https://example.org
Project-URL: Source, https://example.org

See [the guarantees](https://example.org/guarantees.md).
"""
WHOLE = {
    "headrace/__init__.py": "",
    "headrace/py.typed": "",
    f"{INFO}/METADATA": METADATA,
    f"{INFO}/entry_points.txt": "[console_scripts]\nheadrace = headrace.cli:main\n",
    f"{INFO}/licenses/LICENSE": "Apache License",
}


def check(folder: Path, held: dict[str, str]) -> None:
    wheel = folder / "headrace.whl"
    with zipfile.ZipFile(wheel, "w") as opened:
        for name, content in held.items():
            opened.writestr(name, content)
    check_wheel(wheel, ["headrace/__init__.py", "headrace/py.typed"])


def test_a_whole_wheel_passes(tmp_path: Path) -> None:
    check(tmp_path, WHOLE)


@pytest.mark.parametrize(
    ("missing", "problem"),
    [
        ("headrace/__init__.py", "lacks .*__init__"),
        ("headrace/py.typed", "lacks .*py.typed"),
        (f"{INFO}/licenses/LICENSE", "lacks the licence"),
        (f"{INFO}/entry_points.txt", "no `headrace` command"),
    ],
)
def test_a_wheel_that_lacks_something_is_refused(
    tmp_path: Path, missing: str, problem: str
) -> None:
    with pytest.raises(NotReleasable, match=problem):
        check(tmp_path, {name: content for name, content in WHOLE.items() if name != missing})


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("tests/test_layout.py", "outside of the package"),
        ("headrace/tests/__init__.py", "has tests"),
        ("headrace/keyspace/test_layout.py", "has tests"),
        ("benchmarks/floor.py", "outside of the package"),
    ],
)
def test_a_wheel_with_other_files_is_refused(tmp_path: Path, name: str, problem: str) -> None:
    with pytest.raises(NotReleasable, match=problem):
        check(tmp_path, {**WHOLE, name: ""})


@pytest.mark.parametrize(
    ("was", "now", "problem"),
    [
        ("Project-URL: Issues, https://example.org\n", "", "lack the URLs .*Issues"),
        ("https://example.org/guarantees.md", "docs/guarantees.md", "lead nowhere"),
    ],
)
def test_metadata_that_a_package_index_cannot_show_are_refused(
    tmp_path: Path, was: str, now: str, problem: str
) -> None:
    with pytest.raises(NotReleasable, match=problem):
        check(tmp_path, {**WHOLE, f"{INFO}/METADATA": METADATA.replace(was, now)})


def test_the_first_pipeline_of_the_readme_has_code_data_and_commands() -> None:
    code, data, commands = five_minutes((ROOT / "README.md").read_text())
    assert "class Visits(hr.Computation)" in code
    assert len(data.splitlines()) == 4
    assert [words[:2] for words in commands] == [
        ["headrace", "run"],
        ["headrace", "status"],
        ["headrace", "top"],
    ]


def test_a_readme_without_the_pipeline_is_refused() -> None:
    with pytest.raises(NotReleasable, match="blocks of code, data and commands"):
        five_minutes("# Headrace\n\n## Install\n")


def test_a_command_that_fails_is_named_with_what_it_said(tmp_path: Path) -> None:
    with pytest.raises(NotReleasable, match=r"`sh -c .*` ended with 3:\nno storage"):
        run(["sh", "-c", "echo no storage >&2; exit 3"], tmp_path)


def test_a_command_sees_nothing_of_the_environment_of_who_starts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("PYSPARK_PYTHON", "/elsewhere/python")
    said = run(["sh", "-c", "echo ${PYTHONPATH-none} ${PYSPARK_PYTHON-none} $HOME"], tmp_path)
    assert said == f"none none {tmp_path}\n"


def test_a_command_that_hangs_is_ended_with_what_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release_check, "LONGEST_S", 1)
    with pytest.raises(NotReleasable, match="had not ended after 1 s"):
        run(["sh", "-c", "(sleep 1000; echo survived > survivor) & wait"], tmp_path)
    until(lambda: not sleeping_in(tmp_path))


def sleeping_in(folder: Path) -> list[int]:
    """Return the processes that are alive in a folder."""
    return [
        process.pid
        for process in psutil.process_iter(["cwd", "status"])
        if process.info["cwd"] == str(folder) and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


def of_versions(folder: Path, *, project: str, package: str, changelog: str) -> Path:
    (folder / "src/headrace").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(f'[project]\nversion = "{project}"\n')
    (folder / "src/headrace/__init__.py").write_text(f'__version__ = "{package}"\n')
    (folder / "CHANGELOG.md").write_text(f"# Changelog\n\n## Unreleased\n\n## {changelog}\n")
    return folder


def test_a_tag_is_the_version_of_the_project_the_package_and_the_changelog(tmp_path: Path) -> None:
    root = of_versions(tmp_path, project="0.2.0", package="0.2.0", changelog="0.2.0 (2025-01-31)")
    check_version("v0.2.0", root)


@pytest.mark.parametrize(
    ("stale", "problem"),
    [
        ("project", "pyproject.toml has version 0.1.0"),
        ("package", "__version__ is not 0.2.0"),
        ("changelog", "newest section of CHANGELOG.md is 0.1.0"),
    ],
)
def test_a_tag_of_another_version_is_refused(tmp_path: Path, stale: str, problem: str) -> None:
    versions = {"project": "0.2.0", "package": "0.2.0", "changelog": "0.2.0", stale: "0.1.0"}
    with pytest.raises(NotReleasable, match=problem):
        check_version("v0.2.0", of_versions(tmp_path, **versions))


def test_the_version_is_the_same_in_the_project_and_in_the_package() -> None:
    import headrace

    with pytest.raises(NotReleasable, match="the tag is v999"):
        check_version("v999")
    assert f'version = "{headrace.__version__}"' in (ROOT / "pyproject.toml").read_text()
