"""The page in a real browser shows what is in storage, as it changes, and fails at nothing."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

import headrace as hr
from headrace.cli import main
from headrace.storage import LocalStore
from tests.browser.conftest import Tabs, until
from tests.browser.serving import TOKEN, dashboard, lively_driver
from tests.support.checkpointed import driven, items

VIEWS = [
    "overview",
    "graph",
    "steps",
    "watermarks",
    "migrations",
    "bins",
    "key",
    "sinks",
    "workers",
    "history",
    "alerts",
]
AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text()
HOSTILE = "<img src=x onerror='window.hacked=1'>\"'&amp;</script><script>window.hacked=2</script>"


class World:
    """A pipeline that a test steps, and the dashboard that shows it."""

    def __init__(self, harness: Any, storage: Path, url: str) -> None:
        self.harness = harness
        self.storage = storage
        self.url = url
        self.next = 100

    def step(self) -> None:
        """Run a step of a few records."""
        self.harness.push_many("items", items(self.next, 5))
        self.next += 5
        self.harness.step()

    def status(self) -> dict[str, Any]:
        """Return what `headrace status` says."""
        return self.said("status")

    def said(self, command: str) -> dict[str, Any]:
        """Return what a command says."""
        arguments = [command, "--output", "json", "--storage", str(self.storage)]
        found: dict[str, Any] = json.loads(CliRunner().invoke(main, arguments).stdout)
        return found


@pytest.fixture(name="world", scope="module")
def _world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    harness = driven(LocalStore(folder / "storage"), steps=6)
    with dashboard(folder / "storage", folder=folder) as (_, url):
        yield World(harness, folder / "storage", url)
    harness.close()


def show(page: Any, view: str) -> None:
    """Go to a view by its link."""
    page.locator(f"nav a[href^='#{view}']").click()
    page.wait_for_selector(f"nav a[href^='#{view}'][aria-current=page]")
    page.wait_for_selector("main .view section")
    until(page, "!document.querySelector('main').innerText.includes('Reading…')")


def figure(page: Any, name: str) -> str:
    found: str = page.locator(f"[data-from='{name}']").first.inner_text()
    return found


def test_no_view_fails_and_no_request_leaves_this_machine(world: World, tabs: Tabs) -> None:
    page = tabs.open(world.url)
    assert TOKEN not in page.url
    for view in VIEWS:
        show(page, view)
        assert page.locator("main .view section").count() > 0
    assert tabs.problems == []


def test_each_figure_is_that_of_status(world: World, tabs: Tabs) -> None:
    page, status = tabs.open(world.url), world.status()
    assert figure(page, "step") == str(status["step"])
    assert figure(page, "outbox.steps") == str(status["outbox"]["steps"])
    for name, of in status["computations"].items():
        for field in ("records", "produced", "timers", "late", "skipped"):
            assert figure(page, f"computations.{name}.{field}") == f"{of[field]:,}"
        shown = figure(page, f"computations.{name}.watermark")
        wanted = of["output_watermark"].replace("T", " ") if of["output_watermark"] else "none yet"
        assert shown == re.sub(r"(\.\d{3})\d*", r"\1", wanted)
    show(page, "sinks")
    for name, step in status["outbox"]["delivered"].items():
        assert figure(page, f"sinks.{name}.delivered") == f"{step:,}"
    for name, of in status["injectors"].items():
        assert figure(page, f"injectors.{name}.read") == f"{of['read']:,}"
    show(page, "workers")
    shown_bins = [figure(page, f"workers.{n}.bins") for n in range(status["workers"])]
    assert sum(map(int, shown_bins)) == status["bins"]


def test_a_new_step_is_on_the_page_by_itself(world: World, tabs: Tabs) -> None:
    page = tabs.open(world.url)
    first = int(figure(page, "step"))
    for step in (first + 1, first + 2):
        world.step()
        until(page, f"document.querySelector('[data-from=step]')?.innerText === '{step}'")
    assert tabs.problems == []


def test_bins_with_the_oldest_work_are_of_the_computation_that_is_chosen(
    world: World, tabs: Tabs
) -> None:
    page = tabs.open(world.url)
    show(page, "watermarks")
    page.get_by_label("Computation").select_option("cells")
    page.get_by_role("button", name="Look into cells").click()
    page.wait_for_selector("p:has-text('cells as of step')")
    page.get_by_label("Computation").select_option("tables")
    page.wait_for_selector("button:has-text('Look into tables')")
    assert "as of step" not in page.locator("main").inner_text()
    page.get_by_role("button", name="Look into tables").click()
    page.wait_for_selector("p:has-text('tables as of step')")
    assert tabs.problems == []


def test_nothing_is_cut_off_on_a_narrow_screen(world: World, tabs: Tabs) -> None:
    page = tabs.open(world.url, viewport={"width": 360, "height": 740})
    for view in VIEWS:
        show(page, view)
        hidden = page.evaluate(
            "[...document.querySelectorAll('nav a, main td, main tbody th, svg .node')]"
            ".filter(one => one.getBoundingClientRect().right > 361"
            " || one.getBoundingClientRect().left < -1).map(one => one.textContent)"
        )
        assert hidden == [], view
    show(page, "sinks")
    shown = page.evaluate(
        "[...document.querySelectorAll('main td')].map(one => getComputedStyle(one, '::before').content)"
    )
    assert '"Receiving"' in shown, "each value of a card has its title"
    assert tabs.problems == []


def test_two_tabs_show_the_same(world: World, tabs: Tabs) -> None:
    one = tabs.open(world.url)
    two = tabs.another(one.context, world.url.partition("?")[0] + "#steps")
    world.step()
    step = world.status()["step"]
    for page in (one, two):
        until(page, f"document.querySelector('header').innerText.includes('step {step} ')")


def test_the_migration_view_moves_while_state_moves(world: World, tabs: Tabs) -> None:
    page = tabs.open(world.url)
    show(page, "migrations")
    move = world.harness.rescale(7, strategy=hr.fluid())
    seen = set()
    for _ in range(60):
        world.step()
        if move.state == "done":
            break
        step, progress = world.status()["step"], move.progress
        until(page, f"document.querySelector('header').innerText.includes('step {step} ')")
        rounds = f"{progress.rounds} of {progress.of_rounds}"
        page.wait_for_selector(f"[data-from='migration.rounds']:has-text('{rounds}')")
        until(page, f"document.querySelectorAll('.rounds .done').length === {progress.rounds}")
        seen.add(rounds)
        left = progress.of_bins - progress.bins
        until(page, f"document.querySelectorAll('.strip .moves').length === {left}")
    assert move.state == "done"
    assert len(seen) > 2
    page.wait_for_selector("text=Migrations that have ended", state="attached")
    assert "rescale to 7 workers" in page.locator("main").inner_text()
    assert tabs.problems == []


def test_the_load_is_that_of_the_command(world: World, tabs: Tabs) -> None:
    page, load = tabs.open(world.url), world.said("load")
    assert load["work"] and load["hot_keys"]
    show(page, "workers")
    for name, of in load["work"].items():
        assert figure(page, f"work.{name}.all_ms") == shown_ms(page, of["all_ms"])
        for worker, ms in enumerate(of["by_worker_ms"]):
            assert figure(page, f"work.{name}.{worker}") == shown_ms(page, ms)
    for worker, of in enumerate(load["workers"]):
        wanted = page.evaluate(
            "size => import('./texts.js').then(m => m.bytes(size))", of["memory_bytes"]
        )
        assert figure(page, f"workers.{worker}.memory") == wanted
    show(page, "bins")
    table = page.locator("table:has(caption:text-is('Hot keys')) tbody tr")
    assert table.count() == len(load["hot_keys"])
    for row, of in enumerate(load["hot_keys"]):
        text = table.nth(row).inner_text()
        assert of["computation"] in text and ", ".join(of["key"]) in text
        share = page.evaluate("n => import('./texts.js').then(m => m.percent(n))", of["share"])
        assert share in text


def shown_ms(page: Any, ms: float) -> str:
    found: str = page.evaluate("ms => import('./texts.js').then(m => m.millis(ms))", ms)
    return found


def test_a_hot_key_leads_to_what_is_stored_for_it(world: World, tabs: Tabs) -> None:
    page = tabs.open(world.url)
    show(page, "bins")
    row = page.locator("table:has(caption:text-is('Hot keys')) tbody tr:has-text('cells')").first
    key = row.get_by_role("link").inner_text()
    row.get_by_role("link").click()
    page.wait_for_selector("h2:has-text('Look up a key')")
    assert page.get_by_label("Computation").input_value() == "cells"
    assert page.get_by_role("textbox", name="Key").input_value() == key
    page.wait_for_selector("text=What is stored")
    assert tabs.problems == []


def test_a_step_that_is_no_number_is_refused_with_what_to_enter(world: World, tabs: Tabs) -> None:
    page = tabs.open(world.url)
    show(page, "key")
    page.get_by_role("textbox", name="Key").fill("u1")
    step = page.get_by_role("textbox", name="Step")
    step.fill("newest")
    page.get_by_role("button", name="Look up").click()
    until(page, "document.querySelector('[name=step]').validationMessage.includes('such as 120')")
    step.fill(f" {world.status()['step']} ")
    until(page, "document.querySelector('[name=step]').validationMessage === ''")
    page.get_by_role("button", name="Look up").click()
    page.wait_for_selector("text=What is stored")
    assert tabs.problems == []


def test_where_values_are_hidden_no_key_is_shown(tmp_path: Path, tabs: Tabs) -> None:
    driven(LocalStore(tmp_path / "storage"), steps=6).close()
    with dashboard(tmp_path / "storage", folder=tmp_path, more=["--hide-values"]) as (_, url):
        page = tabs.open(url)
        show(page, "bins")
        table = page.locator("table:has(caption:text-is('Hot keys'))")
        assert "not shown here" in table.inner_text()
        live = page.evaluate("fetch('api/v1/live').then(answer => answer.json())")
        keys = live["reading"]["picture"]["load"]["hot_keys"]
        assert keys and all(of["key"] is None for of in keys)
    assert tabs.problems == []


def test_each_layer_is_shown_as_top_says(world: World, tabs: Tabs) -> None:
    page, top = tabs.open(world.url), world.said("top")
    assert len(top["layers"]) >= 2
    show(page, "steps")
    for of in top["layers"]:
        shown = figure(page, f"layers.{of['layer']}.slowest_ms")
        assert shown == shown_ms(page, of["slowest_ms"])
    assert "Layers of this step" in page.locator("main").inner_text()


def test_lag_and_outbox_have_a_past_at_the_first_look(tmp_path: Path, tabs: Tabs) -> None:
    driven(LocalStore(tmp_path / "storage"), steps=30).close()
    with dashboard(tmp_path / "storage", folder=tmp_path) as (_, url):
        page = tabs.open(url)
        found = page.evaluate("fetch('api/v1/history').then(answer => answer.json())")["moments"]
        known = [of for of in found if of["lag_s"] is not None and of["outbox_steps"] is not None]
        assert len(known) >= 8


def test_a_key_is_looked_up(world: World, tabs: Tabs) -> None:
    page = tabs.open(world.url)
    show(page, "key")
    page.get_by_label("Computation").select_option("cells")
    page.get_by_role("textbox", name="Key").fill("u1")
    page.get_by_role("button", name="Look up").click()
    page.wait_for_selector("text=What is stored")
    assert "total" in page.locator("main table").first.inner_text()
    page.get_by_role("textbox", name="Key").fill("nobody")
    page.get_by_role("button", name="Look up").click()
    page.wait_for_selector("text=Nothing is stored for this key")
    page.get_by_label("Computation").select_option("tables")
    page.get_by_role("button", name="Look up").click()
    page.wait_for_selector("[role=alert]:has-text('2 parts')")


def test_a_definition_opens_by_keyboard_with_the_command_that_says_the_same(
    world: World, tabs: Tabs
) -> None:
    page = tabs.open(world.url)
    label = page.get_by_role("button", name="Records read")
    label.focus()
    tip = page.get_by_role("tooltip")
    assert "Records read a second" in tip.inner_text()
    assert f"headrace top --storage {world.storage}" in tip.inner_text()
    assert label.get_attribute("aria-describedby") == "tip"
    page.keyboard.press("Escape")
    assert not tip.is_visible()


def test_every_definition_that_is_used_exists_and_every_number_has_one(
    world: World, tabs: Tabs
) -> None:
    page = tabs.open(world.url)
    for view in VIEWS:
        show(page, view)
        used = page.evaluate("[...document.querySelectorAll('[data-def]')].map(n => n.dataset.def)")
        known = page.evaluate("import('./definitions.js').then(m => Object.keys(m.DEFINITIONS))")
        assert set(used) <= set(known), view
        bare = page.evaluate("document.querySelectorAll('.figure:not([data-def])').length")
        assert bare == 0


def test_each_command_that_a_definition_names_exists(world: World, tabs: Tabs) -> None:
    page = tabs.open(world.url)
    definitions = page.evaluate("import('./definitions.js').then(m => m.DEFINITIONS)")
    for text, command in definitions.values():
        assert text.endswith(".")
        words = [word for word in command.split() if word.islower() and not word.startswith("-")]
        found = CliRunner().invoke(main, [*words, "--help"])
        assert found.exit_code == 0, command


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.drawn(1)
def test_axe_finds_nothing_serious(world: World, tabs: Tabs, scheme: str) -> None:
    page = tabs.open(world.url, color_scheme=scheme, bypass_csp=True)
    page.evaluate(AXE)
    for view in VIEWS:
        show(page, view)
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        serious = [
            (of["id"], [node["html"][:200] for node in of["nodes"][:3]])
            for of in found["violations"]
            if of["impact"] in ("serious", "critical")
        ]
        assert serious == [], view


def test_nothing_is_cut_off_on_a_phone(world: World, tabs: Tabs) -> None:
    page = tabs.open(world.url, viewport={"width": 360, "height": 740})
    for view in VIEWS:
        page.evaluate(f"location.hash = '{view}'")
        page.wait_for_selector(f"nav a[href^='#{view}'][aria-current=page]")
        wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, view


def test_without_a_token_there_is_no_page(world: World, tabs: Tabs) -> None:
    page = tabs.open(world.url.partition("?")[0], wait=False)
    assert "a token is needed" in page.inner_text("body")


class Hit(msgspec.Struct):
    who: str
    part: str
    at: int


class Last(hr.Computation):
    last = hr.ValueState(str, default="")
    out = hr.Output(str)

    def process_record(self, ctx: hr.Context, record: hr.Record) -> None:
        self.last.value = record.value.who


def test_hostile_keys_and_partitions_stay_text(tmp_path: Path, tabs: Tabs) -> None:
    drawn = hr.Pipeline("hostile")
    hits = [Hit(HOSTILE, HOSTILE, 1_000_000), Hit("ann", "b", 60_000_000)]
    source = hr.sources.Iterable(lambda: hits, Hit, event_time="at", partition="part")
    stream = drawn.inject("hits", source, watermark=hr.bounded_delay("1s"))
    drawn.sink("out", drawn.compute("last", Last(), keys={stream: "who"}), hr.sinks.Calls(print))
    storage = tmp_path / HOSTILE[:4]
    with hr.run(drawn, storage=storage, runner="inline", workers=2, bins=4) as job:
        job.catch_up()
    with dashboard(storage, folder=tmp_path) as (_, url):
        page = tabs.open(url)
        for view in VIEWS:
            show(page, view)
        show(page, "watermarks")
        assert "<img src=x onerror=" in page.locator(".holder").inner_text()
        show(page, "key")
        page.get_by_role("textbox", name="Key").fill(HOSTILE)
        page.get_by_role("button", name="Look up").click()
        page.wait_for_selector("text=What is stored")
        assert page.locator("main").inner_text().count(HOSTILE) >= 2
        assert page.evaluate("window.hacked") is None
        assert page.locator("main img, main script").count() == 0
    assert tabs.problems == []


def test_a_killed_driver_is_shown_as_gone(tmp_path: Path, tabs: Tabs) -> None:
    with (
        lively_driver(tmp_path) as driver,
        dashboard(tmp_path / "storage", folder=tmp_path) as (
            _,
            url,
        ),
    ):
        page = tabs.open(url)
        page.wait_for_selector(".standing.well")
        first = page.locator("header").inner_text()
        until(page, "before => document.querySelector('header').innerText !== before", first)
        driver.send_signal(signal.SIGKILL)
        page.wait_for_selector(".standing.critical:has-text('no leader since')")
        page.wait_for_selector(".alert.critical:has-text('has fallen silent')")
        assert tabs.problems == []


def test_the_page_comes_back_when_the_server_does(tmp_path: Path, tabs: Tabs) -> None:
    harness = driven(LocalStore(tmp_path / "storage"), steps=3)
    with dashboard(tmp_path / "storage", folder=tmp_path) as (server, url):
        port = int(url.partition("?")[0].rpartition(":")[2].strip("/"))
        page = tabs.open(url)
        server.terminate()
        assert server.wait(10) == 0
        page.wait_for_selector(".banner.critical:has-text('does not answer')")
        assert page.locator("main.stale").count() == 1
    with dashboard(tmp_path / "storage", folder=tmp_path, port=port):
        page.wait_for_selector("main:not(.stale)")
        harness.push_many("items", items(50, 5))
        harness.step()
        until(page, "document.querySelector('[data-from=step]')?.innerText === '4'")
    harness.close()


def test_a_storage_that_is_away_is_shown_as_away_and_what_was_known_as_old(
    tmp_path: Path, tabs: Tabs
) -> None:
    driven(LocalStore(tmp_path / "storage"), steps=3).close()
    with dashboard(tmp_path / "storage", folder=tmp_path) as (_, url):
        page = tabs.open(url)
        (tmp_path / "storage").rename(tmp_path / "elsewhere")
        page.wait_for_selector(".banner.critical:has-text('unreachable since')")
        assert page.locator("main.stale").count() == 1
        assert figure(page, "step") == "3", "as it was last known"
        (tmp_path / "elsewhere").rename(tmp_path / "storage")
        page.wait_for_selector("main:not(.stale)")
    assert tabs.problems == []


def test_several_pipelines_are_listed_and_chosen(tmp_path: Path, tabs: Tabs) -> None:
    for name in ("a", "b"):
        driven(LocalStore(tmp_path / name), steps=2 if name == "a" else 4).close()
    with dashboard(tmp_path / "a", tmp_path / "b", tmp_path / "c", folder=tmp_path) as (_, url):
        page = tabs.open(url)
        listed = page.locator(".pipelines li")
        assert listed.count() == 3
        assert figure(page, "step") == "2"
        listed.nth(1).get_by_role("link").click()
        until(page, "document.querySelector('[data-from=step]')?.innerText === '4'")
        page.reload()
        until(page, "document.querySelector('[data-from=step]')?.innerText === '4'")
    assert tabs.problems == []


def test_a_report_shows_the_same_without_a_server(tmp_path: Path, tabs: Tabs) -> None:
    driven(LocalStore(tmp_path / "storage"), steps=4).close()
    file = tmp_path / "report.html"
    arguments = ["report", "--storage", str(tmp_path / "storage"), "-o", str(file)]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    page = tabs.open(file.as_uri())
    assert "A report of" in page.locator("[role=status]").first.inner_text()
    assert figure(page, "step") == "4"
    for view in VIEWS:
        show(page, view)
        assert page.locator("main .view section").count() > 0
    assert page.locator("main.stale").count() == 0
    assert tabs.problems == []


def test_a_report_of_hostile_data_runs_nothing(tmp_path: Path, tabs: Tabs) -> None:
    drawn = hr.Pipeline("hostile")
    hits = [Hit("ann", HOSTILE, 1_000_000), Hit("ann", "b", 60_000_000)]
    source = hr.sources.Iterable(lambda: hits, Hit, event_time="at", partition="part")
    stream = drawn.inject("hits", source, watermark=hr.bounded_delay("1s"))
    drawn.sink("out", drawn.compute("last", Last(), keys={stream: "who"}), hr.sinks.Calls(print))
    with hr.run(drawn, storage=tmp_path / "s", runner="inline", workers=2, bins=4) as job:
        job.catch_up()
    file = tmp_path / "report.html"
    CliRunner().invoke(main, ["report", "--storage", str(tmp_path / "s"), "-o", str(file)])
    page = tabs.open(file.as_uri())
    show(page, "watermarks")
    assert "<img src=x onerror=" in page.locator(".holder").inner_text()
    assert page.evaluate("window.hacked") is None
    assert tabs.problems == []


def test_a_command_is_sent_after_it_is_confirmed(tmp_path: Path, tabs: Tabs) -> None:
    harness = driven(LocalStore(tmp_path / "storage"), steps=3)
    store = LocalStore(tmp_path / "storage")
    with dashboard(tmp_path / "storage", folder=tmp_path, more=["--allow-commands"]) as (_, url):
        page = tabs.open(url)
        show(page, "migrations")
        page.get_by_label("Workers").fill("5")
        page.get_by_label("Workers").press("Enter")
        page.get_by_role("button", name="Rescale to 5 workers").click()
        confirm = page.get_by_role("alertdialog")
        assert f"headrace rescale 5 --storage {tmp_path / 'storage'}" in confirm.inner_text()
        page.keyboard.press("Escape")
        confirm.wait_for(state="detached")
        assert store.list("commands/") == []
        page.get_by_role("button", name="Rescale to 5 workers").click()
        confirm.get_by_role("button", name="Send").click()
        while not store.list("commands/"):
            page.wait_for_timeout(20)
        harness.push_many("items", items(50, 5))
        harness.step()
        page.wait_for_selector("[role=status]:has-text('rescale to 5 workers: applied at step')")
        page.wait_for_selector("h2:has-text('rescale to 5 workers')")
    harness.close()
    assert tabs.problems == []


def test_without_permission_there_are_no_commands(world: World, tabs: Tabs) -> None:
    page = tabs.open(world.url)
    for view in ("overview", "migrations"):
        show(page, view)
        assert page.locator(".actions").count() == 0
