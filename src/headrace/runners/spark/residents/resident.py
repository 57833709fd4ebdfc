"""A resident, in a task of Spark: it runs what the driver orders for the workers of its seat."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from typing import NoReturn

import msgspec
from pyspark import TaskContext

from headrace.protocol.plan import StepPlan
from headrace.runners.spark import task_entry
from headrace.runners.spark.residents.links import BROKEN, Address, connect
from headrace.runners.spark.residents.orders import HEARTBEAT, HEARTBEAT_S, Hello, Order, Reply

_orders = msgspec.msgpack.Decoder(Order)
_encode = msgspec.msgpack.Encoder().encode


def serve(
    code: task_entry.Code, address: Address, token: str, partition: Iterable[object]
) -> Iterator[NoReturn]:
    """Run the driver's orders until it has gone. They say for which workers."""
    deque(partition, maxlen=0)  # Spark ends a process whose task has not read its input to the end
    context = TaskContext.get()
    hello = Hello(token, str(context.taskAttemptId()), context.stageId(), os.getpid())
    try:
        link = connect(address, hello)
    except BROKEN:  # it waits for this one no longer
        return
    with link:
        _serve(link, Resident(code, hello.task_attempt).run)
    yield from ()


def _serve(link: Connection, run: Callable[[Order], Reply]) -> None:
    with Heartbeats(link) as heartbeats:
        while True:
            try:
                order = _orders.decode(link.recv_bytes())
                with heartbeats.while_at_work():
                    reply = run(order)
                link.send_bytes(_encode(reply))
            except BROKEN:
                return
            del order, reply
            gc.collect()  # as Spark does after each task


class Heartbeats:
    """Says now and then that a task is at work: the driver cannot see a process that was stopped.

    Args:
        link: the link to the driver.
    """

    def __init__(self, link: Connection) -> None:
        self._link = link
        self._at_work = threading.Lock()  # held while no task is at work
        self._at_work.acquire()
        self._ended = threading.Event()

    def __enter__(self) -> Heartbeats:
        threading.Thread(target=self._run, name="headrace-heartbeats", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._at_work.release()

    @contextlib.contextmanager
    def while_at_work(self) -> Iterator[None]:
        """Let heartbeats be sent in a ``with`` block, and none after it."""
        self._at_work.release()
        try:
            yield
        finally:
            self._at_work.acquire()

    def _run(self) -> None:
        while not self._ended.wait(HEARTBEAT_S):
            with self._at_work, contextlib.suppress(*BROKEN):
                if not self._ended.is_set():
                    self._link.send_bytes(HEARTBEAT)


class Resident:
    """Runs orders.

    Args:
        code: the pipeline's code.
        task_attempt: Spark's id of the task attempt.
    """

    def __init__(self, code: task_entry.Code, task_attempt: str) -> None:
        self._code, self._task_attempt = code, task_attempt
        self._plan: StepPlan | None = None

    def run(self, order: Order) -> Reply:
        """Run an order, and return what became of it."""
        try:
            if order.plan:
                self._plan = task_entry.decoded_plan(order.plan)
            assert self._plan is not None
            attempt = f"{self._task_attempt}.{order.number}"  # (a name is never used again)
            payloads = order.payloads or [[] for _ in order.workers]
            results = list(
                task_entry.run_seat(
                    self._code, self._plan, order.layer, order.workers, attempt, payloads
                )
            )
        except Exception as error:
            return Reply(order.number, [], f"{type(error).__name__}: {error}")
        return Reply(order.number, results)
