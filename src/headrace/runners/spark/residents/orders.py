"""What the driver and a resident worker say to each other."""

from __future__ import annotations

import msgspec

#: What a resident says while a task is at work, and how often, in seconds.
HEARTBEAT, HEARTBEAT_S = b"", 0.5


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """What a resident says first.

    Attributes:
        worker: the number of the worker.
        token: names the start of the resident that this is. The driver refuses others.
        task_attempt: Spark's id of its task attempt.
        stage: Spark's id of its stage.
        pid: its process.
    """

    worker: int
    token: str
    task_attempt: str
    stage: int
    pid: int


class Order(msgspec.Struct, frozen=True, array_like=True):
    """A task to run.

    Attributes:
        number: the number of the order. The reply has it, too.
        layer: the layer of the task; 0 to read a share of the division.
        plan: the plan of the step, encoded; empty for that of the order before.
        payload: a parcel from each task of the layer before.
    """

    number: int
    layer: int
    plan: bytes
    payload: list[bytes]


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """What became of an order.

    Attributes:
        number: the number of the order.
        result: the encoded result of the task; empty if it failed.
        why: why it failed. (Errors of user code are in the result.)
    """

    number: int
    result: bytes
    why: str = ""
