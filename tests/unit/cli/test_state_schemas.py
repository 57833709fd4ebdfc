"""The command line runs newer code on older state, and says why it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headrace.cli import main

CODE = """
import headrace as hr
import msgspec

class Hit(msgspec.Struct):
    page: str
    at: int

class Model(msgspec.Struct):
    n: {type}
    {added}

class Visits(hr.Computation):
    model = hr.ValueState(Model, {options})
    out = hr.Output(str)

    def process_record(self, ctx, record):
        before = self.model.value
        self.model.value = Model({new})
        ctx.produce("out", str(msgspec.structs.astuple(self.model.value)))

hits = [Hit("/home", n) for n in range({count})]
pipeline = hr.Pipeline("traffic")
read = pipeline.inject("hits", hr.sources.Iterable(hits, Hit, event_time="at"))
pipeline.sink("out", pipeline.compute("visits", Visits(), keys={{read: "page"}}), hr.sinks.Console())
"""
FIRST = {
    "type": "int",
    "added": "",
    "options": "",
    "new": "1 if before is None else before.n + 1",
}


def run(folder: Path, count: int, **code: str) -> Result:
    file = folder / f"traffic{count}{len(code)}.py"
    file.write_text(CODE.format(count=count, **{**FIRST, **code}))
    arguments = ["run", str(file), "--storage", str(folder / "state"), "--runner", "inline"]
    return CliRunner().invoke(main, arguments)


def test_newer_code_goes_on_with_older_state_or_is_refused_with_the_difference(
    tmp_path: Path,
) -> None:
    # (a bounded source that has ended takes no more: each run has to do with what is stored only)
    assert "(1,)" in run(tmp_path, 1).stdout
    added = run(tmp_path, 1, added="most: int = 0")
    assert added.exit_code == 0, added.output
    refused = run(tmp_path, 1, type="str", added="most: int = 0", new="'x'")
    assert refused.exit_code != 0
    assert "[HR103]" in refused.output
    assert (
        "computation 'visits': 'model' was value Model(n: int, most: int = 0), is" in refused.output
    )
    assert "field 'n' was int, is str" in refused.output
    upgrade = "version=2, upgrade={1: lambda old: Model(str(old['n']))}"
    upgraded = run(tmp_path, 1, type="str", new="'x'", options=upgrade)
    assert upgraded.exit_code == 0, upgraded.output
    older = run(tmp_path, 1)
    assert "'model' is stored as version 2, and the code's is 1" in older.output
    assert "run the code that wrote it, or newer code" in older.output


@pytest.mark.parametrize("name", ["version", "upgrade"])
def test_what_cannot_be_declared_is_refused_before_anything_runs(tmp_path: Path, name: str) -> None:
    found = run(tmp_path, 1, options=f"{name}=" + ("0" if name == "version" else "{1: int}"))
    assert "[HR101]" in found.output
    assert not (tmp_path / "state").exists()
