"""The files of others are what their packages hold, byte for byte, and come with their licences."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from headrace.observe import web
from headrace.observe.web.assets import MODULES, PAGE, SCRIPTS, STYLES, assets

STATIC = Path(web.__file__).parent / "static"
VENDOR = STATIC / "vendor"
#: Most bytes of the page as a browser receives it.
MOST_BYTES = 150_000


def test_each_vendored_file_has_the_checksum_that_was_written_down() -> None:
    noted = dict(
        reversed(line.split("  ")) for line in (VENDOR / "SHA256SUMS").read_text().splitlines()
    )
    there = {path.name for path in VENDOR.iterdir()} - {"SHA256SUMS", "README.md"}
    assert set(noted) == there
    for name, checksum in noted.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == checksum, name


def test_each_vendored_script_has_its_licence_beside_it() -> None:
    for script in SCRIPTS:
        name = Path(script).name.partition(".")[0]
        assert (
            "MIT" in (VENDOR / f"LICENSE.{name}").read_text()
            or "Permission is hereby" in (VENDOR / f"LICENSE.{name}").read_text()
        )


def test_the_page_is_small() -> None:
    assert sum(len(asset.packed) for asset in assets().values()) < MOST_BYTES


def test_all_files_of_the_page_are_served_and_no_others() -> None:
    own = {path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.is_file()}
    notes = {
        "vendor/SHA256SUMS",
        "vendor/README.md",
        "vendor/LICENSE.dagre",
        "vendor/LICENSE.uplot",
    }
    assert own - notes == set(assets())
    assert {PAGE, *STYLES, *SCRIPTS, *MODULES} < set(assets())


def test_a_module_imports_only_those_before_it() -> None:
    for at, name in enumerate(MODULES):
        lines = (STATIC / name).read_text().splitlines()
        imported = [line.split('"')[1] for line in lines if line.startswith("import ")]
        assert set(imported) <= {f"./{earlier}" for earlier in MODULES[:at]}, name


def test_no_module_makes_markup_of_text() -> None:
    for name in MODULES:
        code = (STATIC / name).read_text()
        for word in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "Function(",
        ):
            assert word not in code, (name, word)


def test_no_name_is_used_twice_at_the_top_of_modules() -> None:
    """A report holds all modules as one."""
    defined = re.compile(r"^(?:export )?(?:async )?(?:const|let|function) (\w+)", re.MULTILINE)
    more = re.compile(r"^let (.+);$", re.MULTILINE)
    names = []
    for module in MODULES:
        code = (STATIC / module).read_text()
        names += defined.findall(code)
        for line in more.findall(code):
            names += re.findall(r", (\w+) =", line)
    assert sorted(names) == sorted(set(names))
