"""The gallery's results are those of plain Python, however steps are cut and whatever crashes."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

import headrace as hr
from tests.support.gallery import driven, example, values

DAY = timedelta(days=1)
#: In one step, and in many, with crashes.
CUTS = pytest.mark.parametrize(("rounds", "seed"), [(1, 0), (12, 1), (20, 2)])


def us(when: datetime) -> int:
    return round((when - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(microseconds=1))


def once(records: Iterable[Any], *ids: str) -> list[Any]:
    """Return each record once, in the order of event time."""
    known = {tuple(getattr(record, name) for name in ids): record for record in records}
    return sorted(known.values(), key=lambda record: record.at)


def grouped(records: Iterable[Any], *names: str) -> dict[Any, list[Any]]:
    groups = defaultdict(list)
    for record in records:
        key = tuple(getattr(record, name) for name in names)
        groups[key if len(names) > 1 else key[0]].append(record)
    return groups


def disorder(records: Sequence[Any]) -> int:
    """Return how many records come after one of a later event time."""
    highest, behind = records[0].at, 0
    for record in records:
        behind += record.at < highest
        highest = max(highest, record.at)
    return behind


def test_the_input_of_each_example_is_disordered_and_has_duplicates_where_ids_are_checked() -> None:
    for name, make, ids in [
        ("sessions", "clicks", ("click",)),
        ("fraud", "payments", ("payment",)),
        ("leaderboard", "scores", ("match", "player")),
        ("billing", "usage", ("server", "number")),
        ("devices", "messages", ()),
        ("anomalies", "calls", ()),
    ]:
        records = getattr(example(f"{name}_data"), make)()
        assert disorder(records) > len(records) / 20, name
        if ids:
            assert len(records) - len(once(records, *ids)) > len(records) / 100, name


@CUTS
@pytest.mark.drawn(1)
def test_a_visit_counts_for_the_plan_that_its_customer_had_when_it_ended(
    rounds: int, seed: int
) -> None:
    data = example("sessions_data")
    clicks, plans = data.clicks(), data.plans()
    days = defaultdict(list)
    for customer, visited in grouped(once(clicks, "click"), "customer").items():
        known = [plan for plan in plans if plan.customer == customer]
        visits = [[visited[0]]]
        for before, click in zip(visited, visited[1:], strict=False):
            if click.at - before.at >= timedelta(minutes=30):
                visits.append([])
            visits[-1].append(click)
        for visit in visits:
            end = visit[-1].at + timedelta(minutes=30)
            had = [plan.plan for plan in known if plan.at <= end]
            day = end.replace(hour=0, minute=0, second=0, microsecond=0)
            days[(had[-1] if had else "guest", day)].append(visit)
    expected = {}
    for (plan, day), visits in days.items():
        lasted = [(visit[-1].at - visit[0].at) // timedelta(seconds=1) for visit in visits]
        cents = [sum(click.cents for click in visit) for visit in visits]
        expected[plan, us(day + DAY)] = {
            "visits": len(visits),
            "pages": pytest.approx(sum(map(len, visits)) / len(visits)),
            "seconds": pytest.approx(sum(lasted) / len(visits)),
            "bought": pytest.approx(sum(paid > 0 for paid in cents) / len(visits)),
            "cents": sum(cents),
        }
    t = driven("sessions", {"clicks": clicks, "plans": plans}, rounds=rounds, seed=seed)
    with t:
        found = values(t, "daily")
        assert len(found) == len(expected) > 10
        for key, at, row in found:
            assert {name: getattr(row, name) for name in expected[key, at]} == expected[key, at]
        assert t.counts("daily").late == t.counts("sessions").late == 0


@CUTS
def test_each_broken_rule_is_found_once_whatever_the_order_of_arrival(
    rounds: int, seed: int
) -> None:
    data = example("fraud_data")
    payments, answers = data.payments(), data.confirmations()
    confirmed = {answer.payment: answer.at for answer in answers}
    expected = Counter()
    for card, paid in grouped(once(payments, "payment"), "card").items():
        for one in paid:
            before = [other for other in paid if other.at < one.at]
            if one.cents >= 20_000:
                recent = timedelta(minutes=10)
                small = [of for of in before if of.cents < 200 and one.at - of.at < recent]
                if len(small) >= 3:
                    expected[card, "card testing", one.payment, one.at] += 1
                deadline = one.at + timedelta(minutes=5)
                if confirmed.get(one.payment, deadline + DAY) > deadline:
                    expected[card, "not confirmed", one.payment, deadline] += 1
            there = [of for of in before if of.in_shop and one.at - of.at < timedelta(hours=1)]
            if one.in_shop and any(of.country != one.country for of in there):
                expected[card, "two countries", one.payment, one.at] += 1
    assert {rule for _, rule, *_ in expected} == {"card testing", "not confirmed", "two countries"}
    t = driven("fraud", {"payments": payments, "confirmations": answers}, rounds=rounds, seed=seed)
    with t:
        cases = values(t, "cases")
        assert (
            Counter(
                (card, of.rule, of.payment, of.at)
                for card, _, case in cases
                for of in case.findings
            )
            == expected
        )
        assert all(at == us(case.findings[0].at) for _, at, case in cases)
        assert t.counts("watch").late == 0


def test_an_analyst_gets_the_findings_of_two_seconds_by_the_clock_in_one_case() -> None:
    data, fraud = example("fraud_data"), example("fraud")
    noon = datetime(2026, 5, 4, 12, tzinfo=UTC)
    with hr.testing.drive(fraud.pipeline()) as t:
        for number, cents in enumerate([100, 100, 100, 50_000, 60_000]):
            at = noon + timedelta(minutes=number)
            t.push("payments", data.Payment(f"p{number}", "ann", "DE", False, cents, at))
        for injector in ("payments", "confirmations"):
            t.watermark(injector, noon + timedelta(minutes=6))
        t.run()
        assert t.outputs("cases") == []
        assert t.watermark_of("watch").output == noon + timedelta(minutes=3), "the case is held"
        t.clock("+1s")
        t.run()
        assert t.outputs("cases") == []
        t.clock("+1s")
        t.run()
        (case,) = t.outputs("cases")
        assert [of.rule for of in case.value.findings] == ["card testing", "card testing"]
        for injector in ("payments", "confirmations"):
            t.watermark(injector, noon + timedelta(hours=1))
        t.run()
        t.clock("+2s")
        t.run()
        (case,) = t.outputs("cases")
        assert [of.rule for of in case.value.findings] == ["not confirmed", "not confirmed"]


@CUTS
def test_a_device_is_silent_after_three_missed_reports_and_never_because_its_line_was_cut(
    rounds: int, seed: int
) -> None:
    messages = example("devices_data").messages()
    newest: dict[str, datetime] = {}
    for message in messages:
        newest[message.gateway] = max(message.at, newest.get(message.gateway, message.at))
    watermark = min(newest.values()) - timedelta(minutes=2)
    expected = []
    for device, heard in grouped(once(messages, "device", "at"), "device").items():
        for one, after in zip(heard, [*heard[1:], None], strict=True):
            deadline = one.at + 3 * one.every
            if one.kind == "retired" or deadline > watermark or (after and after.at <= deadline):
                continue
            expected.append((device, us(deadline), "silent", one.at))
            if after and after.at < watermark:
                expected.append((device, us(after.at), "back", one.at))
    t = driven(
        "devices", {"messages": messages}, rounds=rounds, seed=seed, partition=lambda m: m.gateway
    )
    with t:
        found = [(key, at, row.kind, row.last) for key, at, row in values(t, "reports")]
        assert sorted(found) == sorted(expected)
        assert t.counts("expect").late == 0
    assert {kind for _, _, kind, _ in expected} == {"silent", "back"}


@CUTS
def test_a_podium_has_the_best_players_of_its_region_and_hour(rounds: int, seed: int) -> None:
    scores = example("leaderboard_data").scores()
    expected = {}
    hours = defaultdict(Counter)
    for score in once(scores, "match", "player"):
        start = score.at.replace(minute=0, second=0, microsecond=0)
        hours[score.region, start][score.player] += score.points
    for key, points in hours.items():
        best = sorted(points.items(), key=lambda item: (-item[1], item[0]))[:3]
        expected[key] = (len(points), best)
    t = driven("leaderboard", {"scores": scores}, rounds=rounds, seed=seed)
    with t:
        podiums = values(t, "podiums")
        found = {
            key: (row.players, [(of.player, of.points) for of in row.best])
            for key, _, row in podiums
        }
        assert len(podiums) == len(found) > 10
        assert found == expected
        regions = {region for region, _ in expected}
        last = defaultdict(dict)
        for region, _, row in values(t, "records"):
            last[region][row.rank] = row.points
        for region in regions:
            points = sorted(
                of.points for of in once(scores, "match", "player") if of.region == region
            )
            assert [last[region][rank] for rank in (1, 2, 3)] == points[:-4:-1]
        assert t.keys("boards") == [], "a board forgets what it has produced"


def bills_of(usage: Iterable[Any]) -> dict[tuple[str, str], tuple[int, int, int]]:
    """Return the bills of whole months: (customer, month) → (reports, requests, cents)."""
    months = defaultdict(list)
    for report in once(usage, "server", "number"):
        local = report.at.astimezone(ZoneInfo("Europe/Berlin"))
        months[report.customer, local.strftime("%Y-%m")].append(report.requests)
    bills = {}
    for (customer, month), requests in months.items():
        left, thousandths = sum(requests), 0
        for size, price in [(10_000, 0), (90_000, 30), (left, 12)]:
            part = max(0, min(left, size))
            thousandths += part * price
            left -= part
        bills[customer, month] = (len(requests), sum(requests), thousandths // 1_000)
    return {key: bill for key, bill in bills.items() if key[1] < "2026-04"}


@CUTS
def test_each_request_is_billed_once(rounds: int, seed: int) -> None:
    usage = example("billing_data").usage()
    t = driven("billing", {"usage": usage}, rounds=rounds, seed=seed)
    with t:
        found = values(t, "bills")
        bills = {(key, of.month): (of.reports, of.requests, of.cents) for key, _, of in found}
        assert len(bills) == len(found)
        assert bills == bills_of(usage)
        assert t.counts("months").late == t.counts("usage.ids").expired == 0
        last = {month: row for month, _, row in values(t, "turnover")}
        for month, row in last.items():
            of = [bill for (_, when), bill in bills.items() if when == month]
            assert (row.bills, row.cents) == (len(of), sum(cents for *_, cents in of))


def test_a_bill_waits_three_days_for_late_reports_and_counts_what_comes_after() -> None:
    data, billing = example("billing_data"), example("billing")
    february = datetime(2026, 2, 1, tzinfo=ZoneInfo("Europe/Berlin"))

    def report(number: int, before: timedelta) -> Any:
        return data.Usage("fra-1", number, "ann", 20_000, february - before)

    with hr.testing.drive(billing.pipeline()) as t:
        t.push("usage", report(1, timedelta(minutes=5)))
        t.watermark("usage", february + timedelta(days=2, hours=23))
        t.run()
        assert t.outputs("bills") == []
        t.push("usage", report(2, timedelta(minutes=10)))
        t.watermark("usage", february + timedelta(days=3))
        t.run()
        (bill,) = t.outputs("bills")
        assert (bill.value.month, bill.value.reports, bill.value.cents) == ("2026-01", 2, 900)
        t.push("usage", report(3, timedelta(minutes=15)))
        t.run()
        assert t.outputs("bills") == []
        assert t.counts("months").late == 1


@CUTS
def test_odd_minutes_and_quantiles_are_those_of_a_model_in_plain_python(
    rounds: int, seed: int
) -> None:
    calls = example("anomalies_data").calls()
    odd, quantiles = {}, {}
    for endpoint, answered in grouped(calls, "endpoint").items():
        minutes, hours = defaultdict(list), defaultdict(list)
        for call in answered:
            minutes[us(call.at) // 60_000_000].append(call.micros)
            hours[us(call.at) // 3_600_000_000].append(call.micros)
        mean = variance = 0.0
        for seen, (minute, micros) in enumerate(sorted(minutes.items())):
            now = sum(micros) / len(micros)
            off, sigma = now - mean, math.sqrt(variance)
            if seen >= 30 and len(micros) >= 10 and abs(off) > 5 * sigma:
                key = (endpoint, (minute + 1) * 60_000_000)
                odd[key] = (len(micros), now / 1e3, mean / 1e3)
                off = math.copysign(sigma, off)
            rate = max(0.05, 1 / (seen + 1))
            mean += rate * off
            variance = (1 - rate) * (variance + rate * off * off)
        for hour, micros in hours.items():
            micros.sort()
            quantiles[endpoint, (hour + 1) * 3_600_000_000] = (
                len(micros),
                micros[math.ceil(0.5 * len(micros)) - 1] / 1e3,
                micros[math.ceil(0.99 * len(micros)) - 1] / 1e3,
            )
    assert {endpoint for endpoint, _ in odd} == {"/pay", "/search"}
    t = driven("anomalies", {"calls": calls}, rounds=rounds, seed=seed)
    with t:
        found = {
            (key, at): (row.calls, row.mean_ms, row.expected_ms)
            for key, at, row in values(t, "anomalies")
        }
        assert found == {key: pytest.approx(of, rel=1e-9) for key, of in odd.items()}
        rows = {(key, at): row for key, at, row in values(t, "quantiles")}
        assert rows.keys() == quantiles.keys()
        for key, (count, median, high) in quantiles.items():
            assert rows[key].calls == count
            assert rows[key].p50_ms == pytest.approx(median, rel=0.02)
            assert rows[key].p99_ms == pytest.approx(high, rel=0.02)
        assert t.counts("watch").late == 0
