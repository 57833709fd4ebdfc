"""A member of a crew, in a task of Spark: it runs what the driver orders."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from typing import NoReturn

import msgspec
from pyspark import TaskContext

from headrace.protocol.plan import StepPlan
from headrace.runners.spark import task_entry
from headrace.runners.spark.crew.links import BROKEN, Address, connect
from headrace.runners.spark.crew.orders import Hello, Order, Reply

_orders = msgspec.msgpack.Decoder(Order)
_encode = msgspec.msgpack.Encoder().encode


def serve(
    code: task_entry.Code, address: Address, token: str, numbers: Iterable[int]
) -> Iterator[NoReturn]:
    """Run the driver's orders until it has gone. The partition's element is the worker's number."""
    (number,) = list(numbers)
    context = TaskContext.get()
    hello = Hello(number, token, str(context.taskAttemptId()), context.stageId(), os.getpid())
    try:
        link = connect(address, hello)
    except BROKEN:  # it waits for this member no longer
        return
    with link:
        _serve(link, Member(code, number, hello.task_attempt).run)
    yield from ()


def _serve(link: Connection, run: Callable[[Order], Reply]) -> None:
    while True:
        try:
            link.send_bytes(_encode(run(_orders.decode(link.recv_bytes()))))
        except BROKEN:
            return
        gc.collect()  # as Spark does after each task


class Member:
    """Runs orders.

    Args:
        code: the pipeline's code.
        worker: the number of the worker.
        task_attempt: Spark's id of the task attempt.
    """

    def __init__(self, code: task_entry.Code, worker: int, task_attempt: str) -> None:
        self._code, self._worker, self._task_attempt = code, worker, task_attempt
        self._plan: StepPlan | None = None

    def run(self, order: Order) -> Reply:
        """Run an order, and return what became of it."""
        try:
            if order.plan:
                self._plan = task_entry.decoded_plan(order.plan)
            assert self._plan is not None
            result = task_entry.run_task(
                self._code,
                self._plan,
                order.layer,
                self._worker,
                self._task_attempt,
                order.payload,
            )
        except Exception as error:
            return Reply(order.number, b"", f"{type(error).__name__}: {error}")
        return Reply(order.number, result)
