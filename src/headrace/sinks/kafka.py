"""A sink of topics of Kafka: each step is a transaction, which holds a marker of the step."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import pyarrow as pa

from headrace import messages
from headrace.errors import (
    Fenced,
    HeadraceError,
    NotFound,
    PipelineError,
    SinkConflict,
    UserCodeError,
)
from headrace.messages.base import MessageFormat
from headrace.messages.servers import Servers, Topic, kafka_error, raised_by_client
from headrace.pipeline.sink import Deliverer, Delivery, Sink
from headrace.sinks.conflicts import belongs_to, superseded
from headrace.sinks.kafka_errors import REMEDIES, NotTaken, outlook_of
from headrace.sinks.kafka_messages import Columns, Header, MessageColumns, Options, Portion
from headrace.sinks.kafka_sender import TRANSACTION_MS, TRANSACTION_TIMEOUT, Sender
from headrace.sinks.kafka_steps import PARTITION, Marker, StepsTopic, marker_of

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

Mode = Literal["append", "upsert"]
FormatName = Literal["json", "text", "bytes"]

#: How often a step is tried, and for how long, while errors may pass.
_ATTEMPTS = 10
_PATIENCE_S = 120.0
_PAUSE_S = 0.05
#: How often a step is tried that something else ends each time.
_FENCED = 3


class _Key(Enum):
    OF_THE_STREAM = "the stream's key"


class Kafka(Sink):
    """Writes each step that produced something to a topic of Kafka, as one transaction.

    It needs ``pip install "headrace[kafka]"``.

    Args:
        topic: the topic. It must exist, unless ``create`` is given.
        servers: some of the brokers: ``"one:9092,two:9092"``.
        topic_column: instead of ``topic``, the column that says where a row goes.
        key: the column of the key, or several; by default the key of the stream. None for no key.
        value: the columns of the value: one, a list, or a mapping of names in the stream to names in
            the value. By default all.
        format: how values are written: ``"json"``, ``"text"``, ``"bytes"``, or one of
            :mod:`headrace.messages`.
        key_format: how keys are written; by default as text, and as JSON if they have several columns.
        mode: ``append`` sends a message for each row. ``upsert`` is for compacted topics: of a step it
            sends the last row of each key, and a row without a value as a tombstone, which deletes
            the key. A row is without a value if ``deletes`` says so, or if all columns of the value
            but key and timestamp are null.
        deletes: in ``upsert``, a column of booleans: whether a row deletes its key.
        partition: a column of integers: the partition of each row. By default, and where it is null,
            the key decides, as in Java clients.
        headers: columns of texts or bytes, as a list, or as a mapping of columns to names of headers;
            or the one column that has all headers of a row, as a dict or as structs of ``key`` and
            ``value``.
        timestamp: ``"event_time"`` gives messages the event time of their rows, cut to milliseconds.
            None gives them the time at which they are sent.
        audit_headers: whether messages say where they come from: ``hr-pipeline``, ``hr-sink``,
            ``hr-step`` (the id of the delivery) and ``hr-row`` (the number of the row in it).
        create: how a missing topic is made: ``{"partitions": 6}``, also with ``replication_factor``
            and settings of topics.
        settings: settings of librdkafka: ``{"security.protocol": "SASL_SSL", …}``.
        at_least_once: send without transactions. After a crash the last steps may come twice.
        transactional_id: the ``transactional.id``; by default ``headrace/PIPELINE/SINK/TOPIC``.
            Change it only while no driver runs.
        steps_topic: the topic of the markers. It is made if it is missing.
        take_over: whether to go on where this sink of another storage has written. By default that
            is refused.

    Guarantees: exactly once for consumers with ``isolation.level=read_committed``, which is the
    default of librdkafka, and not of Java. A transaction holds the rows of a step and a marker in the
    steps topic, which is compacted and forgets nothing. A new driver first fences older ones, which
    also aborts what they have begun, and then reads the marker: a step that is there is skipped. An
    older driver that goes on is refused (``Fenced``). That holds however long a pipeline was stopped.
    Rows of a key keep their order, as long as the topic keeps its number of partitions.

    Whatever fails is tried again for about two minutes, also while the brokers are away. A row that
    cannot be a message, or that is too large, is refused by its key.

    Secrets in ``settings`` are shown nowhere.

    Cost: 7 ms a step of 100 rows at best, with a broker on the same machine. A row takes about 12 µs of
    processor time, mostly for JSON and in the client; 7 µs without audit headers. A step must be
    written within ``transaction.timeout.ms`` (a minute), and no reader of committed messages sees past
    an open transaction. Keep both in mind if steps are large.

    Example::

        totals = hr.sinks.Kafka("totals", "localhost:9092", mode="upsert")
        p.sink("totals", visits, totals)

    Raises:
        PipelineError: for options that do not go together, for unknown settings, and if
            confluent-kafka is not installed.
    """

    idempotent = True

    def __init__(
        self,
        topic: str | None = None,
        servers: str | Sequence[str] = "",
        *,
        topic_column: str | None = None,
        key: str | Sequence[str] | _Key | None = _Key.OF_THE_STREAM,
        value: str | Sequence[str] | Mapping[str, str] | None = None,
        format: FormatName | MessageFormat = "json",
        key_format: FormatName | MessageFormat | None = None,
        mode: Mode = "append",
        deletes: str | None = None,
        partition: str | None = None,
        headers: str | Sequence[str] | Mapping[str, str] | None = None,
        timestamp: Literal["event_time"] | None = "event_time",
        audit_headers: bool = True,
        create: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        at_least_once: bool = False,
        transactional_id: str | None = None,
        steps_topic: str = "headrace.steps",
        take_over: bool = False,
    ) -> None:
        if (topic is None) == (topic_column is None):
            raise PipelineError(
                f"topic={topic!r} with topic_column={topic_column!r}", remedy="give one of the two"
            )
        _check_choice("mode", mode, ("append", "upsert"))
        _check_choice("timestamp", timestamp, ("event_time", None))
        if deletes is not None and mode != "upsert":
            raise PipelineError(
                f"deletes={deletes!r} with mode={mode!r}", remedy='only mode="upsert" deletes keys'
            )
        self._servers = Servers(servers, settings)
        self._options = Options(
            format=_format(format, "format"),
            key_formats=_key_formats(key_format),
            topic=topic,
            topic_column=topic_column,
            own_key=isinstance(key, _Key),
            key=() if key is None or isinstance(key, _Key) else _names("key", key),
            value=_value(value),
            upsert=mode == "upsert",
            deletes=deletes,
            partition=partition,
            headers=headers if headers is None or isinstance(headers, str) else _pairs(headers),
            event_time=timestamp is not None,
        )
        self._audit = audit_headers
        self._create = _creation(create)
        self._exactly_once = not at_least_once
        self._transactional_id = transactional_id
        self._steps = StepsTopic(self._servers, steps_topic)
        self._may_take_over = take_over
        self.idempotent = self._exactly_once  # (for readers of the code, as in all sinks)
        self._columns: MessageColumns | None = None
        self._run: Deliverer | None = None
        self._topics: dict[str, Topic] = {}
        self._sender: Sender | None = None
        self._marker: Marker | None = None
        self._taken_from: str | None = None  # the lineage whose marker does not count
        self._ahead: Marker | None = None  # a marker that this driver should have known

    def __repr__(self) -> str:
        return f"Kafka({self._named!r}, servers={self._servers.addresses!r})"

    @cached_property
    def _admin(self) -> AdminClient:
        return self._servers.admin()

    @property
    def _named(self) -> str:
        return self._options.topic or f"column {self._options.topic_column}"

    @property
    def _place(self) -> str:
        return self._servers.place(self._options.topic or "")

    def target(self) -> str:
        return self._place

    def check(self, columns: pa.Schema) -> None:
        """Refuse columns that cannot become messages."""
        self._columns = MessageColumns(self._options, columns)

    # -- before a run -------------------------------------------------------------------------

    def begin(self, deliverer: Deliverer) -> None:
        """Check that the topic is there, fence older drivers, and look what was delivered.

        Raises:
            SinkConflict: if this sink of another storage has written to the topic.
            NotFound: if the topic does not exist.
            StorageError: if the brokers do not answer.
        """
        run = self._run
        if run is not None and _sink_of(run) != _sink_of(deliverer):
            raise PipelineError(
                f"one {type(self).__name__} is the sink {run.sink!r} of pipeline {run.pipeline!r}, "
                f"and {deliverer.sink!r} of {deliverer.pipeline!r}",
                place=self._place,
                remedy="make one for each",
            )
        self._drop_sender()
        self._topics.clear()
        self._taken_from = self._ahead = None
        if self._options.topic is not None:
            self._topic(self._options.topic)
        if self._exactly_once:
            replicas = [topic.replicas for topic in self._topics.values()]
            self._steps.prepare(self._admin, min(replicas, default=-1))
        try:
            self._open(deliverer, begins=True)
        except BaseException as error:
            self._drop_sender()
            if kafka_error(error) is None:
                raise
            raise self._cannot_begin(error) from None
        newest = max({deliverer.delivered, *deliverer.pending})
        if self._marker is not None and self._marker.delivery > newest:
            self._ahead = self._marker
        self._run = deliverer

    def _open(self, run: Deliverer, *, begins: bool = False) -> Sender:
        """Fence older producers, and then look what they have committed."""
        self._sender = sender = Sender(self._servers, self._id(run) if self._exactly_once else None)
        sender.fence()
        if self._exactly_once:
            self._marker = self._look(run, begins=begins)
        return sender

    def _id(self, run: Deliverer) -> str:
        return self._transactional_id or f"headrace/{_key_of(run, self._options.topic)}"

    def _look(self, run: Deliverer, *, begins: bool = False) -> Marker | None:
        """Return the marker of this sink, if it counts.

        Raises:
            SinkConflict: if it is of another storage.
        """
        marker = self._steps.newest(_key_of(run, self._options.topic).encode())
        if marker is None or self._is_of_another_topic(marker):
            return None
        if marker.lineage == run.lineage:
            return marker
        if begins and self._may_take_over:
            self._taken_from = marker.lineage
        if marker.lineage == self._taken_from:
            return None
        raise belongs_to("topic", marker.pipeline, marker.sink, marker.storage, self._place)

    def _is_of_another_topic(self, marker: Marker) -> bool:
        """Return whether a topic was deleted and made again since. What it had does not count."""
        topic = self._topics.get(marker.topic)
        return topic is not None and "" not in (ids := {topic.id, marker.topic_id}) and len(ids) > 1

    def _topic(self, name: str) -> Topic:
        """Return what is known of a topic.

        Raises:
            NotFound: if it does not exist.
        """
        found = self._topics.get(name)
        if found is None:
            admin = self._admin
            found = self._servers.topic(name, admin)
            if found is None and self._create is not None:
                settings = dict(self._create)
                partitions = settings.pop("partitions")
                replicas = settings.pop("replication_factor", -1)
                self._servers.create_topic(admin, name, partitions, replicas, settings)
                found = self._servers.topic(name, admin)
            if found is None:
                raise NotFound(
                    f"topic {name!r} does not exist",
                    place=self._servers.place(),
                    remedy='make it, or let the sink do that: create={"partitions": 6}',
                )
            self._topics[name] = found
        return found

    # -- a delivery ---------------------------------------------------------------------------

    def deliver(self, step: int, rows: pa.Table) -> None:
        self.receive(Delivery(step, step, rows, {}))

    def receive(self, delivery: Delivery) -> None:
        if self._run is None:
            raise PipelineError(
                "a delivery came before begin()",
                place=self._place,
                remedy="call begin(deliverer) first: the topic records whose delivery it is",
            )
        self._check_ahead(delivery)
        rows = delivery.rows
        columns = self._columns
        if columns is None or not columns.fit(rows.schema):
            columns = self._columns = MessageColumns(self._options, rows.schema)
        for topic in columns.topics(rows):
            self._topic(topic)
            columns.open(topic)
        if self._options.upsert:
            rows = columns.newest_of_each_key(rows)
        self._write(self._run, delivery, columns, rows)

    def _write(
        self, run: Deliverer, delivery: Delivery, columns: MessageColumns, rows: pa.Table
    ) -> None:
        """Try to write rows until that succeeds, or cannot.

        Each attempt but the first begins with a new producer, which ends what the one before has
        begun, and with a look at the marker. So it makes no difference what became of that.
        """
        raised: tuple[type[Exception], ...] = (*raised_by_client(), NotTaken)
        first, fenced, number = time.monotonic(), 0, 0
        while True:
            number, began = number + 1, time.monotonic()
            try:
                self._attempt(run, delivery, columns, rows)
                return
            except raised as error:
                lasts = outlook_of(error) == "lasts"
                heard = self._sender.heard() if self._sender is not None else ""
                self._drop_sender(abort=lasts)
                fenced += outlook_of(error) == "fenced"
                if outlook_of(error) == "fenced":
                    self._check_not_replaced(run, delivery)
                now = time.monotonic()
                given_up = number >= _ATTEMPTS or now - first > _PATIENCE_S or fenced >= _FENCED
                if lasts or given_up:
                    raise self._failed(error, now - began, heard) from None
                time.sleep(_PAUSE_S)
            except BaseException:
                self._drop_sender(abort=True)
                raise

    def _attempt(
        self, run: Deliverer, delivery: Delivery, columns: MessageColumns, rows: pa.Table
    ) -> None:
        sender = self._sender or self._open(run)
        if self._has(delivery):
            return
        sender.begin()
        portions = 0
        for portion in columns.portions(rows, self._audit_headers(run, delivery)):
            self._check_partitions(portion, columns)
            try:
                sender.send(portion)
            except NotTaken as error:
                if error.row is not None:
                    error.about = f"{columns.described(portion.rows, error.row)}, {error.about}"
                raise
            portions += 1
        if not self._exactly_once:
            sender.commit()
            return
        if portions > 1:
            sender.flush()  # (from the marker to the commit, readers of the steps topic wait)
        self._mark(sender, run, delivery)

    def _mark(self, sender: Sender, run: Deliverer, delivery: Delivery) -> None:
        """Commit the rows together with a marker of them."""
        topic = self._options.topic or ""
        known = self._topics.get(topic)
        marker = marker_of(run, delivery, topic, "" if known is None else known.id)
        key = _key_of(run, self._options.topic).encode()
        sender.mark(self._steps.name, PARTITION, key, msgspec.json.encode(marker))
        sender.commit()
        self._marker = marker

    def _has(self, delivery: Delivery) -> bool:
        """Return whether the topic has a delivery.

        Raises:
            Fenced: if a newer driver has delivered.
        """
        marker = self._marker
        if marker is None or not self._exactly_once:
            return False
        if marker.epoch > delivery.epoch:
            raise superseded("topic", delivery.epoch, marker.epoch, self._place)
        return marker.delivery >= delivery.id

    def _check_ahead(self, delivery: Delivery) -> None:
        """Check that the topic has no deliveries of which this driver should know and does not.

        Raises:
            Fenced: if a newer driver has made them.
            SinkConflict: otherwise.
        """
        if self._ahead is None:
            return
        if self._ahead.epoch > delivery.epoch:
            raise superseded("topic", delivery.epoch, self._ahead.epoch, self._place)
        raise SinkConflict(
            f"the topic has delivery {self._ahead.delivery}, and the storage knows only those before "
            f"{delivery.id}: it was put back to an earlier state",
            place=self._place,
            remedy="nothing was written. Go on with the newer storage; or give the sink another topic, "
            "or another name",
        )

    def _check_not_replaced(self, run: Deliverer, delivery: Delivery) -> None:
        """Look, without fencing others, whether a newer driver has delivered.

        Raises:
            Fenced: if one has.
        """
        if self._exactly_once:
            self._marker = self._look(run)
            self._has(delivery)

    def _check_partitions(self, portion: Portion, columns: MessageColumns) -> None:
        """Check that the partitions are there that rows name.

        Raises:
            UserCodeError: for the first row that names another.
        """
        if self._options.partition is None or not portion.partitions:
            return
        most = max(portion.partitions)
        if most >= self._topic(portion.topic).partitions:
            del self._topics[portion.topic]  # (it may have got more)
        count = self._topic(portion.topic).partitions
        if most >= count:
            row = portion.partitions.index(most)
            raise UserCodeError(
                f"ValueError: the row of {columns.described(portion.rows, row)} goes to partition "
                f"{most}, and the topic has {count}",
                place=self._servers.place(portion.topic),
                remedy="emit partitions from 0 on, or give the topic more",
            )

    def _audit_headers(self, run: Deliverer, delivery: Delivery) -> list[Header] | None:
        if not self._audit:
            return None
        return [
            ("hr-pipeline", run.pipeline.encode()),
            ("hr-sink", run.sink.encode()),
            ("hr-step", b"%d" % delivery.id),
        ]

    def close(self) -> None:
        self._drop_sender()
        self.__dict__.pop("_admin", None)
        self._run = None

    def _drop_sender(self, *, abort: bool = False) -> None:
        """End the producer."""
        sender, self._sender, self._marker = self._sender, None, None
        if sender is None:
            return
        if abort:
            sender.abort()
        sender.close()

    # -- errors -------------------------------------------------------------------------------

    def _cannot_begin(self, error: Any) -> HeadraceError:
        found = self._servers.failed(error, "no transaction can begin", topic=self._named)
        of = kafka_error(error)
        remedy = _BEGIN_REMEDIES.get(of.name() if of is not None else "", found.remedy)
        return type(found)(found.what, place=self._place, remedy=remedy)

    def _failed(self, error: Any, took_s: float, heard: str) -> HeadraceError:
        of = error.error if isinstance(error, NotTaken) else kafka_error(error)
        about = f": {error.about}" if isinstance(error, NotTaken) and error.about else ""
        topic = error.topic if isinstance(error, NotTaken) else self._options.topic or ""
        name = of.name() if of is not None else ""
        if name in REMEDIES:
            what, remedy = REMEDIES[name]
            return UserCodeError(
                f"ValueError: {what}{about} ({name})",
                place=self._servers.place(topic),
                remedy=remedy,
            )
        if outlook_of(error) == "fenced":
            return self._fenced_again(of, took_s)
        return self._servers.failed(
            of, f"the step was not written{about}", topic=topic, heard=heard
        )

    def _fenced_again(self, error: Any, took_s: float) -> HeadraceError:
        limit_s = int(self._servers.setting(TRANSACTION_TIMEOUT, TRANSACTION_MS)) / 1e3
        if took_s >= limit_s:
            found = self._servers.failed(
                error, f"the step was not written within {limit_s:g} s", topic=self._named
            )
            remedy = (
                f'let it take longer: settings={{"{TRANSACTION_TIMEOUT}": …}}, at most the brokers\' '
                "transaction.max.timeout.ms; or make steps smaller (Settings.limit)"
            )
            return type(found)(found.what, place=self._place, remedy=remedy)
        return Fenced(
            "another producer writes with the transactional id of this sink, and no newer driver has "
            "delivered to the topic",
            place=self._place,
            remedy="nothing was written. Let each sink have its own transactional_id, and let one "
            "driver run at a time",
        )


_NO_COORDINATOR = (
    "look whether the servers run, and can be reached from this machine. On fewer than three brokers, "
    "also set transaction.state.log.replication.factor and transaction.state.log.min.isr"
)
#: What to do if no transaction can begin.
_BEGIN_REMEDIES = {
    "_TIMED_OUT": _NO_COORDINATOR,
    "COORDINATOR_NOT_AVAILABLE": _NO_COORDINATOR,
    "INVALID_TRANSACTION_TIMEOUT": f"lower {TRANSACTION_TIMEOUT} in settings=, or raise the brokers' "
    "transaction.max.timeout.ms",
}


# -- options ----------------------------------------------------------------------------------


def _sink_of(run: Deliverer) -> tuple[str, str, str]:
    return run.lineage, run.pipeline, run.sink


def _key_of(run: Deliverer, topic: str | None) -> str:
    """Return the key of a sink's marker."""
    of = f"{run.pipeline}/{run.sink}"
    return of if topic is None else f"{of}/{topic}"


def _check_choice(option: str, given: Any, choices: Sequence[Any]) -> None:
    if given not in choices:
        raise PipelineError(
            f"{option}={given!r}", remedy=f"use {' or '.join(repr(one) for one in choices)}"
        )


_FORMATS: dict[str, type[MessageFormat]] = {
    "json": messages.Json,
    "text": messages.Text,
    "bytes": messages.Raw,
}


def _format(given: str | MessageFormat, option: str) -> MessageFormat:
    if isinstance(given, MessageFormat):
        return given
    if given not in _FORMATS:
        raise PipelineError(
            f"{option}={given!r} is no format of messages",
            remedy='use "json", "text" or "bytes", or one of headrace.messages, such as Avro(…)',
        )
    return _FORMATS[given]()


def _key_formats(given: FormatName | MessageFormat | None) -> tuple[MessageFormat, MessageFormat]:
    if given is None:
        return _format("text", "key_format"), _format("json", "key_format")
    made = _format(given, "key_format")
    return made, made


def _names(option: str, given: str | Sequence[str]) -> list[str]:
    found = [given] if isinstance(given, str) else list(given)
    if not found or len(set(found)) < len(found):
        raise PipelineError(
            f"{option}={given!r} names no column, or one twice", remedy="name each column once"
        )
    return found


def _value(given: str | Sequence[str] | Mapping[str, str] | None) -> Columns | None:
    if given is None:
        return None
    return _pairs([given] if isinstance(given, str) else given, "value")


def _pairs(given: Sequence[str] | Mapping[str, str], option: str = "headers") -> Columns:
    """Return columns of the stream by their names outside."""
    of = dict(given) if isinstance(given, Mapping) else {name: name for name in given}
    found = {name: column for column, name in of.items()}
    if not found or len(found) < len(given):
        raise PipelineError(
            f"{option}={given!r} names no column, or one twice", remedy="name each column once"
        )
    return found


def _creation(given: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if given is None:
        return None
    if not isinstance(given.get("partitions"), int) or given["partitions"] < 1:
        raise PipelineError(
            f"create={dict(given)!r} does not say how many partitions a topic gets",
            remedy='for example create={"partitions": 6}; also replication_factor, and settings of '
            'topics such as "retention.ms"',
        )
    return dict(given)
