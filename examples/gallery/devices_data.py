"""What the gateways of a farm pass on from its sensors."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Literal

import msgspec

MIDNIGHT = datetime(2026, 1, 12, tzinfo=UTC)
HOURS = 12
GATEWAYS = ("barn", "greenhouse", "well")


class Message(msgspec.Struct, frozen=True):
    """What a gateway passes on: a device is enrolled, has measured something, or is retired."""

    device: str
    gateway: str
    kind: Literal["enrolled", "measured", "retired"]
    every: timedelta  # how often the device is to report
    at: datetime
    celsius: float | None = None


def messages() -> list[Message]:
    """Return what the gateways send in half a day, in the order in which it arrives."""
    rng = random.Random(5)
    arrivals: list[tuple[datetime, Message]] = []
    # The line to the well is cut for two hours. Its gateway sends later what it has heard, in order.
    cut, mended = MIDNIGHT + timedelta(hours=4), MIDNIGHT + timedelta(hours=6)
    caught_up = mended + timedelta(minutes=2)
    for number in range(90):
        gateway = rng.choice(GATEWAYS)
        device, every = f"{gateway}-{number:02}", timedelta(minutes=rng.choice([2, 5, 10]))
        begin = MIDNIGHT + timedelta(minutes=30 * rng.random())
        end = MIDNIGHT + timedelta(hours=HOURS)
        fate = rng.choices(["fine", "dead", "pause", "never", "retired"], [80, 5, 6, 3, 4])[0]
        pause = begin + timedelta(hours=HOURS * rng.random())
        back = pause + timedelta(minutes=rng.randrange(20, 180))
        says = [Message(device, gateway, "enrolled", every, begin)]
        at = begin + every
        while at < end and fate != "never" and not (fate in ("dead", "retired") and at > pause):
            if not (fate == "pause" and pause < at < back):
                celsius = round(rng.gauss(12, 3), 1)
                says.append(Message(device, gateway, "measured", every, at, celsius))
            at += every + timedelta(seconds=rng.gauss(0, 5))
        if fate == "retired":
            says.append(Message(device, gateway, "retired", every, at))
        for message in says:
            sent = message.at + timedelta(seconds=90 * rng.random())
            if gateway == "well" and cut < sent < caught_up:
                sent = mended + (sent - cut) * ((caught_up - mended) / (caught_up - cut))
            arrivals.append((sent, message))
    return [message for _, message in sorted(arrivals, key=lambda arrival: arrival[0])]
