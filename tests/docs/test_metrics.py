"""The reference of the metrics is that of the code; alerts and dashboards use what is exported."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.observe.metric_definitions import BUILD_INFO, METRICS, STORAGE_METRICS, Definition
from tests.docs.test_documents import anchors

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "ops" / "prometheus"
ALERTS = [PROMETHEUS / "alerts.yml", PROMETHEUS / "alerts_standby.yml"]
PAGE = ROOT / "docs" / "how-to" / "metrics.md"
DEFINED: dict[str, Definition] = {of.name: of for of in (BUILD_INFO, *STORAGE_METRICS, *METRICS)}
#: Labels that Prometheus adds to everything that it scrapes.
ADDED = {"instance", "job"}
_USE = re.compile(r"\b(headrace_\w+)(?:\{([^}]*)\})?")
_LABEL = re.compile(r"(\w+)\s*(?:=~|!=|!~|=)\s*\"")


def expressions_of(rules: Path) -> list[str]:
    """Return the expressions of alerts, each of which ends before the next key."""
    blocks = re.findall(r"^ +expr:(.*?)^ +(?:for|labels):", rules.read_text(), re.DOTALL | re.M)
    assert len(blocks) == rules.read_text().count("- alert:")
    return blocks


def panels() -> Iterator[dict[str, Any]]:
    board = json.loads((ROOT / "ops" / "grafana" / "headrace.json").read_text())
    yield from (panel for panel in board["panels"] if panel["type"] != "row")


def used() -> Iterator[tuple[str, str]]:
    """Yield where an expression is, and the expression."""
    for rules in ALERTS:
        for expression in expressions_of(rules):
            yield rules.name, expression
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def test_each_metric_and_label_that_is_used_is_exported() -> None:
    count = 0
    for where, expression in used():
        for name, labels in _USE.findall(expression):
            assert name in DEFINED, (where, name)
            unknown = set(_LABEL.findall(labels)) - {*DEFINED[name].all_labels, *ADDED}
            assert not unknown, (where, name, unknown)
            count += 1
    assert count > 50


def test_each_legend_names_labels_of_its_metric() -> None:
    for panel in panels():
        assert panel["description"], panel["title"]
        for target in panel["targets"]:
            known = {
                label
                for name, _ in _USE.findall(target["expr"])
                for label in DEFINED[name].all_labels
            }
            legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert legend <= known, (panel["title"], legend - known)


def test_the_dashboard_leaves_out_only_what_says_little_as_a_line() -> None:
    shown = {
        name
        for panel in panels()
        for target in panel["targets"]
        for name, _ in _USE.findall(target["expr"])
    }
    left_out = DEFINED.keys() - shown
    assert left_out == {
        "headrace_build_info",
        "headrace_counter_total",
        "headrace_storage_read_timestamp_seconds",
        "headrace_input_ended",
        "headrace_timers_total",
        "headrace_produced_records_total",
        "headrace_backfilling",
        "headrace_injector_highest_timestamp_seconds",
        "headrace_sink_delivered_step",
        "headrace_sink_behind_steps",
        "headrace_workers",
        "headrace_bins",
        "headrace_worker_records_per_second",
        "headrace_migrations_total",
        "headrace_recent_steps",
        "headrace_recent_records_per_second",
    }


def test_each_alert_leads_to_what_to_do_and_has_a_test() -> None:
    tests = (PROMETHEUS / "alerts_test.yml").read_text()
    for rules in ALERTS:
        text = rules.read_text()
        names = re.findall(r"- alert: (\w+)", text)
        links = re.findall(r"runbook_url: https://\S+/docs/how-to/metrics.md#(\w+)", text)
        assert links == [name.lower() for name in names]
        assert set(links) <= anchors(PAGE)
        for name in names:
            assert re.search(rf"alertname: {name}\n +exp_alerts:", tests), f"{name} is not tested"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_finds_nothing_wrong() -> None:
    for command in (
        ["promtool", "check", "rules", *map(str, ALERTS)],
        ["promtool", "test", "rules", str(PROMETHEUS / "alerts_test.yml")],
    ):
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_reference_is_that_of_the_help_texts() -> None:
    page = runpy.run_path(str(ROOT / "scripts" / "metrics_reference.py"))["page"]()
    reference = ROOT / "docs" / "reference" / "metrics.md"
    assert reference.read_text() == page, (
        "generate it: python scripts/metrics_reference.py > docs/reference/metrics.md"
    )
