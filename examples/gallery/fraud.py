"""Card fraud: rules on the order of payments, on what did not come, and cases for analysts.

$ headrace run examples/gallery/fraud.py --storage state/fraud --runner inline
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec
from fraud_data import Confirmation, Payment, confirmations, payments

import headrace as hr

SMALL, LARGE = 200, 20_000  # cents
TESTING, CONFIRM, GATHER = timedelta(minutes=10), timedelta(minutes=5), timedelta(seconds=2)


class Finding(msgspec.Struct, frozen=True):
    """A rule that a payment has broken."""

    rule: str
    payment: str
    cents: int
    at: datetime


class Case(msgspec.Struct, frozen=True):
    """What an analyst gets: the findings of one card in one message."""

    findings: list[Finding]


class Watch(hr.TwoInput):
    """Applies the rules to each card's payments and confirmations."""

    recent = hr.ListState(Payment, ttl="1h")
    unanswered = hr.MapState(str, Payment)  # large payments that wait for their confirmation
    findings = hr.ListState(Finding)
    overdue = hr.Timer(hr.EVENT_TIME)
    send = hr.Timer(hr.WALL_TIME, holds=True)
    cases = hr.Output(Case)

    def process_left(self, ctx: hr.Context, record: hr.Record[Payment]) -> None:
        payment = record.value
        before = list(self.recent)
        if payment.cents >= LARGE:
            tests = [p for p in before if p.cents < SMALL and payment.at - p.at < TESTING]
            if len(tests) >= 3:
                self.report(ctx, "card testing", payment, payment.at)
            self.unanswered[payment.payment] = payment
            self.overdue.set(payment.at + CONFIRM, tag=payment.payment)
        if payment.in_shop and any(p.in_shop and p.country != payment.country for p in before):
            self.report(ctx, "two countries", payment, payment.at)
        self.recent.append(payment)

    def process_right(self, ctx: hr.Context, record: hr.Record[Confirmation]) -> None:
        if self.unanswered.pop(record.value.payment, None):
            self.overdue.cancel(tag=record.value.payment)

    def process_timer(self, ctx: hr.Context, timer: hr.Fired) -> None:
        if timer.name == "overdue":
            self.report(ctx, "not confirmed", self.unanswered.pop(timer.tag), timer.time)
        else:
            ctx.produce("cases", Case(self.findings.copy()))
            self.findings.clear()

    def report(self, ctx: hr.Context, rule: str, payment: Payment, at: datetime) -> None:
        """Note a finding. The first one opens a case, which waits for others by the clock."""
        if not self.findings:
            self.send.set(ctx.now + GATHER, hold=at)
        self.findings.append(Finding(rule, payment.payment, payment.cents, at))


def show(step: int, cases: Any) -> None:
    """Print the cases, one finding a line."""
    for case in sorted(cases.to_pylist(), key=lambda case: case["key"]):
        for found in case["findings"]:
            amount = f"{found['cents'] / 100:8,.2f} EUR  {found['payment']}"
            print(f"{case['key']}  {found['at']:%H:%M}  {found['rule']:13}  {amount}")


def pipeline() -> hr.Pipeline:
    """Build the pipeline."""
    p = hr.Pipeline("fraud")
    source = hr.sources.Iterable(payments, Payment, event_time="at")
    paid = p.inject("payments", source, watermark=hr.bounded_delay("15m"), ids="payment")
    answers = hr.sources.Iterable(confirmations, Confirmation, event_time="at")
    confirmed = p.inject("confirmations", answers)
    watch = p.compute("watch", Watch(), keys={paid: "card", confirmed: "card"}, ordered=True)
    p.sink("cases", watch, hr.sinks.Calls(show))
    return p
