"""What the driver and a resident worker say to each other."""

from __future__ import annotations

import msgspec

#: What a resident says while a task is at work, and how often, in seconds.
HEARTBEAT, HEARTBEAT_S = b"", 0.5


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """What a resident says first.

    Attributes:
        token: names the start of the resident that this is. The driver refuses others.
        task_attempt: Spark's id of its task attempt.
        stage: Spark's id of its stage.
        pid: its process.
    """

    token: str
    task_attempt: str
    stage: int
    pid: int


class Order(msgspec.Struct, frozen=True, array_like=True):
    """Tasks to run: one for each worker of a seat.

    Attributes:
        number: the number of the order. The reply has it, too.
        layer: the layer of the tasks; 0 to read shares of the division.
        plan: the plan of the step, encoded; empty for that of the order before.
        workers: the numbers of the seat's workers.
        payloads: for each of them, a parcel from each task of the layer before.
    """

    number: int
    layer: int
    plan: bytes
    workers: tuple[int, ...]
    payloads: list[list[bytes]]


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """What became of an order.

    Attributes:
        number: the number of the order.
        results: the encoded results of the tasks; empty if one failed.
        why: why it failed. (Errors of user code are in the result.)
    """

    number: int
    results: list[bytes]
    why: str = ""
