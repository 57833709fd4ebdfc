"""Build the wheel and the sdist, check them, and do what README says with the wheel alone.

python scripts/release_check.py [--only-build] [--tag v0.2.0]

The results are in ``dist/``. With ``--only-build`` nothing is installed or run. With ``--tag``, the version
in pyproject.toml, ``headrace.__version__`` and the newest section of CHANGELOG.md must be that of the tag.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Sequence
from email import message_from_bytes
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
SECTION = "## Five minutes to your own pipeline"
#: What `headrace run` of README's pipeline must print: page, end of its minute, visits.
TOTALS = [
    ("/about", "2024-05-01T12:01:00Z", 1),
    ("/home", "2024-05-01T12:01:00Z", 2),
    ("/home", "2024-05-01T12:04:00Z", 1),
]
#: What `headrace status` must say of it.
PROGRESS = "computation visits: watermark end, 4 records, 0 late"

#: A command that takes longer hangs.
LONGEST_S = 900


class NotReleasable(Exception):
    """Something about the built distributions is wrong."""


def require(holds: object, problem: str) -> None:
    if not holds:
        raise NotReleasable(problem)


# -- build ------------------------------------------------------------------------------------


def build(source: Path, target: Path, *kinds: str) -> None:
    """Build distributions from a source tree. The same tree always gives the same bytes."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1704067200"}
    done = subprocess.run(
        [*command, *kinds, str(source)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    require(done.returncode == 0, f"{source} cannot be built:\n{done.stdout}{done.stderr}")


def only(folder: Path, pattern: str) -> Path:
    """Return the one file of a folder that matches."""
    found = sorted(folder.glob(pattern))
    require(len(found) == 1, f"{folder} has {len(found)} files {pattern}; one was expected")
    return found[0]


def members(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def check_rebuilt(sdist: Path, wheel: Path) -> None:
    """Build a wheel from the sdist, and compare it with the one from the source tree."""
    with tempfile.TemporaryDirectory() as scratch:
        with tarfile.open(sdist) as opened:
            opened.extractall(scratch, filter="data")
        build(only(Path(scratch), "headrace-*"), Path(scratch, "rebuilt"), "--wheel")
        rebuilt, direct = members(only(Path(scratch, "rebuilt"), "*.whl")), members(wheel)
    differing = sorted(
        name for name in rebuilt.keys() | direct.keys() if rebuilt.get(name) != direct.get(name)
    )
    require(
        not differing,
        f"the sdist builds another wheel than the source tree; different: {differing}",
    )


# -- contents ---------------------------------------------------------------------------------


def check_wheel(wheel: Path, sources: Iterable[str]) -> None:
    """Check that a wheel holds the whole package, its licence and its metadata, and nothing else.

    Args:
        wheel: the built wheel.
        sources: the files that the package must have, as paths that begin with ``headrace/``.
    """
    held = members(wheel)
    info = next((name.split("/")[0] for name in held if ".dist-info/" in name), "")
    foreign = sorted(name for name in held if not name.startswith(("headrace/", f"{info}/")))
    require(not foreign, f"the wheel has files outside of the package: {foreign[:10]}")
    tests = sorted(name for name in held if re.search(r"(^|/)(tests|test_[^/]*\.py)(/|$)", name))
    require(not tests, f"the wheel has tests: {tests[:10]}")
    missing = sorted({*sources, "headrace/py.typed"} - held.keys())
    require(not missing, f"the wheel lacks {missing[:10]}")
    require(f"{info}/licenses/LICENSE" in held, "the wheel lacks the licence")
    entry_points = held.get(f"{info}/entry_points.txt", b"").decode()
    require("headrace = headrace.cli:main" in entry_points, "the wheel has no `headrace` command")
    metadata = message_from_bytes(held[f"{info}/METADATA"])
    urls = {url.split(",")[0] for url in metadata.get_all("Project-URL", [])}
    lacking = {"Homepage", "Documentation", "Changelog", "Issues", "Source"} - urls
    require(not lacking, f"the metadata lack the URLs {sorted(lacking)}")
    relative = re.findall(r"\]\((?!https?:|#)([^)]*)\)", str(metadata.get_payload()))
    require(not relative, f"links of README lead nowhere on a package index: {relative}")


def check_sdist(sdist: Path) -> None:
    with tarfile.open(sdist) as opened:
        held = {name.split("/", 1)[1] for name in opened.getnames() if "/" in name}
    missing = {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "tests/conftest.py"} - held
    require(not missing, f"the sdist lacks {sorted(missing)}")
    stray = sorted(
        name for name in held if re.search(r"(^|/)(\.venv|__pycache__|\.git)(/|$)", name)
    )
    require(not stray, f"the sdist has files that are no part of the project: {stray[:10]}")


def check_version(tag: str, root: Path = ROOT) -> None:
    """Check that a tag, the package and the changelog speak of one version."""
    version = tag.removeprefix("v")
    declared = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    require(declared == version, f"pyproject.toml has version {declared}, the tag is {tag}")
    package = (root / "src/headrace/__init__.py").read_text()
    require(f'__version__ = "{version}"' in package, f"headrace.__version__ is not {version}")
    sections = re.findall(r"^## (.*)$", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    newest = next((name for name in sections if name != "Unreleased"), "none")
    require(
        newest.split(" ")[0] == version,
        f"the newest section of CHANGELOG.md is {newest}; move what is under Unreleased to {version}",
    )


# -- README, on the wheel alone ---------------------------------------------------------------


def five_minutes(readme: str) -> tuple[str, str, list[list[str]]]:
    """Return what README's first pipeline consists of: its code, its data, its commands."""
    section = readme.partition(f"{SECTION}\n")[2].partition("\n## ")[0]
    code = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    data = re.findall(r"```json\n(.*?)```", section, re.DOTALL)
    blocks = re.findall(r"```\n(headrace .*?)```", section, re.DOTALL)
    parts = len(code), len(data), len(blocks)
    require(
        parts == (1, 1, 2), f"README has {parts} blocks of code, data and commands, not 1, 1 and 2"
    )
    return code[0], data[0], [line.split() for line in "".join(blocks).splitlines()]


def run(command: Sequence[str | Path], folder: Path) -> str:
    """Run a command as somebody would who has nothing of this repository; return its output."""
    kept = {
        name: os.environ[name] for name in ("JAVA_HOME", "LANG", "TMPDIR") if name in os.environ
    }
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), **kept}
    line = " ".join(str(part) for part in command)
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as complained:
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=complained,
            start_new_session=True,
        )
        try:
            code = process.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):  # (what it has started goes with it)
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        said.seek(0)
        complained.seek(0)
        output, errors = said.read(), complained.read()
    ended = f"had not ended after {LONGEST_S} s" if code is None else f"ended with {code}"
    require(code == 0, f"`{line}` {ended}:\n{output}{errors}")
    return output


def install(wheel: Path, folder: Path) -> Path:
    """Install a wheel and what it requires in an empty environment; return where its programs are."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    programs = folder / "bin"
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([programs / "pip", "install", "--quiet", *constraints, str(wheel)], check=True)
    return programs


def check_in_use(programs: Path, runner: str) -> None:
    """Do what README's five minutes say, and check what comes out."""
    code, data, commands = five_minutes((ROOT / "README.md").read_text())
    more = [] if runner == "spark" else ["--runner", runner]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "visits.py").write_text(code)
        (folder / "hits.jsonl").write_text(data)
        where = run(
            [programs / "python", "-c", "import headrace; print(headrace.__file__)"], folder
        )
        require(str(programs.parent) in where, f"headrace was imported from {where}")
        said = {}
        for name, *arguments in commands:
            extra = more if arguments[0] == "run" else []
            said[arguments[0]] = run([programs / name, *arguments, *extra], folder)
        again = next(
            [programs / name, *rest, *more] for name, *rest in commands if rest[0] == "run"
        )
        repeated = run(again, folder)
    rows = [json.loads(line) for line in said["run"].splitlines()]
    totals = sorted((row["key"], row["timestamp"], row["value"]) for row in rows)
    require(totals == TOTALS, f"on {runner} the pipeline of README printed {rows}")
    require(not repeated, f"on {runner} the second run printed {repeated}")
    require(PROGRESS in said["status"], f"on {runner} `headrace status` said {said['status']}")
    require("visits" in said["top"], f"on {runner} `headrace top` said {said['top']}")


def sources_of_package() -> list[str]:
    """Return the files under version control that the wheel must have."""
    listed = subprocess.check_output(["git", "ls-files", "src/headrace"], cwd=ROOT, text=True)
    return [name.removeprefix("src/") for name in listed.splitlines()]


def main() -> int:
    """Check everything; return 0 if it may be released."""
    options = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    options.add_argument("--only-build", action="store_true")
    options.add_argument("--tag", metavar="vX.Y.Z")
    chosen = options.parse_args()
    try:
        if chosen.tag:
            check_version(chosen.tag)
        shutil.rmtree(DIST, ignore_errors=True)
        build(ROOT, DIST, "--sdist", "--wheel")
        wheel, sdist = only(DIST, "*.whl"), only(DIST, "*.tar.gz")
        subprocess.run(
            [sys.executable, "-m", "twine", "check", "--strict", wheel, sdist], check=True
        )
        check_wheel(wheel, sources_of_package())
        check_sdist(sdist)
        check_rebuilt(sdist, wheel)
        print(f"Built and checked: {wheel.name}, {sdist.name}", flush=True)
        if not chosen.only_build:
            with tempfile.TemporaryDirectory() as scratch:
                programs = install(wheel, Path(scratch, "venv"))
                for runner in ("inline", "spark"):
                    check_in_use(programs, runner)
                    print(f"README's five minutes run on the wheel alone: {runner}", flush=True)
    except (NotReleasable, subprocess.CalledProcessError) as problem:
        print(f"Not to be released: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
