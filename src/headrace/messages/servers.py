"""Kafka's servers: settings of clients, secrets that are not shown, errors in our own words.

Sources and sinks share this. The client is confluent-kafka, which is librdkafka in Python. It is
imported when a client is first needed.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.errors import HeadraceError, NotFound, PipelineError, StorageDenied, StorageError

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Producer
    from confluent_kafka.admin import AdminClient

#: How long a request to the servers may take before it counts as failed, in seconds.
PATIENCE_S = 60.0
_PAUSE_S = 0.05

_ADDRESS = re.compile(r"(?:[A-Za-z_]+://)?(?:\[[0-9A-Fa-f:.%\w]+\]|[^\s/:@\[\]]+)(?::\d{1,5})?")
#: Settings whose values are secrets. (The certificate of a PEM is not one, but nobody reads it.)
_SECRET = re.compile(r"password|passphrase|secret|token|\.pem$|^sasl\.oauthbearer\.config$")
#: The shortest end of a secret that is looked for in messages: the client may show a part of it.
_SHORTEST = 4
_USUAL: dict[str, Any] = {"client.id": "headrace"}


class _Silent:
    """Takes the log of a client. What goes wrong comes as an error; the log would repeat it."""

    def log(self, level: int, text: str, *parts: object) -> None:
        """Take a line of it."""


_QUIET: dict[str, Any] = {"log_level": 0, "logger": _Silent()}
#: Settings of the Java client that many have at hand, and what librdkafka has in their place.
_JAVA = {
    "sasl.jaas.config": "sasl.username and sasl.password",
    "ssl.truststore.location": "ssl.ca.location, a PEM file",
    "ssl.keystore.type": "ssl.keystore.location, which is PKCS#12",
    "key.serializer": "key_format=",
    "value.serializer": "format=",
    "key.deserializer": "key_format=",
    "value.deserializer": "format=",
}
_LIST_OF_SETTINGS = "https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md"


class Topic(NamedTuple):
    """A topic, as it is now.

    Attributes:
        id: what Kafka calls it, whatever its name; another one if it is made again. "" for unknown.
        partitions: how many it has.
        replicas: how many brokers have each of them, at least.
    """

    id: str
    partitions: int
    replicas: int


class Servers:
    """Kafka servers, and how clients connect to them.

    It is plain data: it can be pickled, and opens nothing until it is asked for a client. Its
    ``repr`` and its errors show no secrets.

    Args:
        servers: some of the brokers, ``"host:9092,other:9092"`` or a list; clients learn the others
            from them.
        settings: settings of librdkafka, such as ``{"security.protocol": "SASL_SSL",
            "sasl.password": …}``. Those of consumers are ignored by producers, and the other way
            round.

    Raises:
        PipelineError: for servers or settings that cannot be right, and if confluent-kafka is not
            installed.
    """

    def __init__(
        self, servers: str | Sequence[str], settings: Mapping[str, Any] | None = None
    ) -> None:
        self.addresses = _addresses(servers)
        self._settings = {name: _plain(name, of) for name, of in (settings or {}).items()}
        if "bootstrap.servers" in self._settings or "metadata.broker.list" in self._settings:
            raise PipelineError(
                "the servers are given twice", remedy="give servers=, and no bootstrap.servers"
            )
        self._check()

    def __repr__(self) -> str:
        names = f", settings: {', '.join(sorted(self._settings))}" if self._settings else ""
        return f"Servers({self.addresses!r}{names})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Servers):
            return NotImplemented
        return (self.addresses, self._settings) == (other.addresses, other._settings)

    def __hash__(self) -> int:
        return hash((self.addresses, *sorted(self._settings)))

    def _check(self) -> None:
        """Let the client look at the settings. It connects to nothing.

        Raises:
            PipelineError: for a setting that it refuses.
        """
        for name, value in self._settings.items():
            is_file = name.endswith(".location") and isinstance(value, str) and value != "probe"
            if is_file and not os.path.exists(value):
                raise PipelineError(
                    f"settings: {name} names a file that does not exist: {value}",
                    remedy="give the path of a file on this machine",
                )
        self.producer({}, unconnected=True)

    # -- settings of clients ------------------------------------------------------------------

    def consumer_config(
        self, fixed: Mapping[str, Any], usual: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the settings of a consumer.

        Args:
            fixed: settings that a user may not change.
            usual: settings that a user may change.

        Raises:
            PipelineError: if the user has changed a fixed one.
        """
        return self._config(fixed, usual or {})

    def producer_config(
        self, fixed: Mapping[str, Any], usual: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the settings of a producer; see :meth:`consumer_config`."""
        return self._config(fixed, usual or {})

    def _config(self, fixed: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
        for name, value in fixed.items():
            given = self._settings.get(name, value)
            if _as_text(given) != _as_text(value):
                raise PipelineError(
                    f"settings: {name} is set by Headrace here, to {_as_text(value)}",
                    remedy=f"leave out {name}",
                )
        return {
            "bootstrap.servers": self.addresses,
            **self._usual,
            **usual,
            **self._settings,
            **fixed,
        }

    @property
    def _usual(self) -> dict[str, Any]:
        """Settings of all clients, unless the user gives others."""
        asks_for_log = {"log_level", "debug", "log.queue"} & set(self._settings)
        return _USUAL if asks_for_log else _USUAL | _QUIET

    def setting(self, name: str, usual: Any = None) -> Any:
        """Return a setting that the user gave, or another value if there is none."""
        return self._settings.get(name, usual)

    # -- clients ------------------------------------------------------------------------------

    def consumer(self, config: Mapping[str, Any]) -> Consumer:
        """Return a consumer with settings that :meth:`consumer_config` has made.

        Raises:
            PipelineError: if the client refuses the settings.
        """
        from_library = _library()
        made: Consumer = self._made(lambda: from_library.Consumer(dict(config)))
        return made

    def producer(self, config: Mapping[str, Any], *, unconnected: bool = False) -> Producer:
        """Return a producer with settings that :meth:`producer_config` has made.

        Args:
            config: its settings.
            unconnected: make it of the user's settings alone, without servers.

        Raises:
            PipelineError: if the client refuses the settings.
        """
        from_library = _library()
        if unconnected:
            config = {**self._usual, **self._settings}
        made: Producer = self._made(lambda: from_library.Producer(dict(config)))
        return made

    def admin(self) -> AdminClient:
        """Return a client that asks about topics, and makes them.

        Raises:
            PipelineError: if the client refuses the settings.
        """
        _library()
        from confluent_kafka.admin import AdminClient

        made: AdminClient = self._made(lambda: AdminClient(self._config({}, {})))
        return made

    def _made(self, make: Callable[[], Any]) -> Any:
        from confluent_kafka import KafkaException

        try:
            return make()
        except (KafkaException, TypeError, ValueError) as error:
            why = self._without_secrets(_words(error))
            java = next((name for name in _JAVA if name in self._settings), None)
            remedy = f"settings are those of librdkafka: {_LIST_OF_SETTINGS}"
            if java is not None:
                remedy = f"{java} is of the Java client; here it is {_JAVA[java]}. The {remedy}"
            raise PipelineError(
                f"the client of Kafka refuses its settings: {why}", remedy=remedy
            ) from None

    # -- topics -------------------------------------------------------------------------------

    def partitions_of(self, topic: str, admin: AdminClient | None = None) -> int | None:
        """Return how many partitions a topic has; None if it does not exist.

        It asks in a way that does not make the topic.

        Args:
            topic: its name.
            admin: the client that asks; by default a new one.

        Raises:
            StorageError: if the servers do not answer, or do not allow it.
        """
        found = self.topic(topic, admin)
        return None if found is None else found.partitions

    def topic(self, name: str, admin: AdminClient | None = None) -> Topic | None:
        """Return what there is under a name; None if there is no topic of this name.

        It asks in a way that does not make the topic.

        Args:
            name: the topic.
            admin: the client that asks; by default a new one.

        Raises:
            StorageError: if the servers do not answer, or do not allow it.
        """
        from confluent_kafka import KafkaError, KafkaException, TopicCollection

        client = admin or self.admin()
        request = client.describe_topics(TopicCollection([name]), request_timeout=PATIENCE_S)[name]
        try:
            found = request.result(PATIENCE_S + 5)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise self.failed(error, f"topic {name!r} cannot be looked at") from None
        replicas = min((len(one.replicas) for one in found.partitions), default=0)
        return Topic(str(found.topic_id or ""), len(found.partitions), replicas)

    def create_topic(
        self,
        admin: AdminClient,
        name: str,
        partitions: int,
        replicas: int,
        settings: Mapping[str, Any],
    ) -> None:
        """Make a topic, unless another process makes it meanwhile. Return once brokers know it.

        Args:
            admin: the client that asks.
            name: the topic.
            partitions: how many partitions it gets.
            replicas: how many brokers have each; -1 for what they use by default.
            settings: the topic's.

        Raises:
            StorageError: if it cannot be made.
        """
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import NewTopic

        wanted = NewTopic(name, partitions, replicas, config={**settings})
        made = admin.create_topics([wanted], operation_timeout=PATIENCE_S)[name]
        try:
            made.result(PATIENCE_S + 5)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise self.failed(error, f"topic {name!r} cannot be made") from None
        deadline = time.monotonic() + PATIENCE_S
        while self.topic(name, admin) is None and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)

    def settings_of(self, admin: AdminClient, topic: str) -> dict[str, str | None]:
        """Return the settings of a topic that exists. Of a new one, some brokers may not know yet.

        Raises:
            StorageError: if they cannot be read.
        """
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self._settings_of(admin, topic)
            except NotFound:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_PAUSE_S)

    def _settings_of(self, admin: AdminClient, topic: str) -> dict[str, str | None]:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import ConfigResource, ResourceType

        resource = ConfigResource(ResourceType.TOPIC, topic)
        request = admin.describe_configs([resource], request_timeout=PATIENCE_S)[resource]
        try:
            return {name: of.value for name, of in request.result(PATIENCE_S + 5).items()}
        except KafkaException as error:
            raise self.failed(error, f"the settings of topic {topic!r} cannot be read") from None

    # -- errors -------------------------------------------------------------------------------

    def place(self, topic: str = "") -> str:
        """Return where something is, for people."""
        return f"topic {topic!r} of Kafka at {self.addresses}" if topic else self.addresses

    def failed(self, error: Any, what: str, *, topic: str = "", heard: str = "") -> HeadraceError:
        """Return the error to raise for one of the client.

        Args:
            error: a ``KafkaError``, or an exception that has one.
            what: what could not be done.
            topic: the topic that it was about.
            heard: what the client has said before, such as why it cannot connect.
        """
        found = kafka_error(error)
        words = self._without_secrets(_words(error))
        because = self._without_secrets(heard)
        why = f"{words} ({because})" if because and because not in words else words
        kind, remedy = _kind_of(found)
        return kind(f"{what}: {why}", place=self.place(topic), remedy=remedy)

    def _without_secrets(self, text: str) -> str:
        """Return a text of the client without the values of secret settings, or ends of them."""
        for name, value in self._settings.items():
            if is_secret(name) and isinstance(value, str):
                text = _hidden(text, value)
        return text


class Heard:
    """What a client has last said by itself, such as that it cannot connect: for messages.

    Pass :meth:`note` to it as ``error_cb``. It is called when the client is polled.
    """

    def __init__(self) -> None:
        self.last = ""

    def note(self, error: KafkaError) -> None:
        """Keep what a client says. That all brokers are down says less than why they are."""
        from confluent_kafka import KafkaError

        if error.code() != KafkaError._ALL_BROKERS_DOWN or not self.last:
            self.last = error.str()


def is_secret(name: str) -> bool:
    """Return whether the value of a setting is not to be shown."""
    return _SECRET.search(name) is not None


def kafka_error(error: Any) -> KafkaError | None:
    """Return the ``KafkaError`` that an exception of the client has, or that this is."""
    from confluent_kafka import KafkaError

    if isinstance(error, BaseException) and not isinstance(error, KafkaError):
        error = error.args[0] if error.args else None
    return error if isinstance(error, KafkaError) else None


def raised_by_client() -> tuple[type[Exception], ...]:
    """Return what the client raises. What ends it for good is a ``KafkaError`` itself."""
    from confluent_kafka import KafkaError, KafkaException

    itself: Any = KafkaError  # (the client's types do not say that it is an exception, too)
    return KafkaException, itself


def _library() -> Any:
    try:
        import confluent_kafka
    except ImportError as missing:
        raise PipelineError(
            f"Kafka needs a package that is not there: {missing}",
            remedy='pip install "headrace[kafka]"',
        ) from None
    return confluent_kafka


def _addresses(servers: str | Sequence[str]) -> str:
    """Return addresses as the client takes them.

    Raises:
        PipelineError: if they are none.
    """
    given = servers.split(",") if isinstance(servers, str) else list(servers)
    found = [str(one).strip() for one in given]
    if not found or not all(_ADDRESS.fullmatch(one) for one in found):
        raise PipelineError(
            f"servers={servers!r} are no addresses of Kafka",
            remedy='give HOST:PORT of one broker or of several: servers="one:9092,two:9092"',
        )
    return ",".join(found)


def _plain(name: str, value: Any) -> Any:
    """Return the value of a setting as the client takes it.

    Raises:
        PipelineError: if it can be no setting.
    """
    if not isinstance(name, str) or not (isinstance(value, str | int | float) or callable(value)):
        raise PipelineError(
            f"settings: {name!r} is of type {type(value).__name__}",
            remedy="give texts, numbers or True and False, by the names that librdkafka has for them",
        )
    return _as_text(value) if isinstance(value, bool) else value


def _as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _hidden(text: str, secret: str) -> str:
    ends = (secret[at:] for at in range(max(1, len(secret) - _SHORTEST + 1)))
    found = next((end for end in ends if end and end in text), None)
    return text if found is None else text.replace(found, "***")


def _words(error: Any) -> str:
    found = kafka_error(error)
    return str(error) if found is None else f"{found.str()} ({found.name()})"


def _kind_of(error: KafkaError | None) -> tuple[type[HeadraceError], str]:
    """Return the class of ours for an error of the client, and what to do about it."""
    name = "" if error is None else error.name()
    if name.endswith("AUTHORIZATION_FAILED"):
        of = name.removesuffix("_AUTHORIZATION_FAILED").lower().replace("_", " ")
        return StorageDenied, f"grant the user of the settings the right to this {of}"
    if name in _DENIED:
        return StorageDenied, "correct security.protocol and the sasl. settings"
    if name in _UNKNOWN:
        return NotFound, "make the topic, or correct its name"
    if name in _UNREACHABLE:
        return StorageError, "look whether the servers run, and can be reached from this machine"
    if name == "_SSL":
        return StorageError, "correct security.protocol and the ssl. settings"
    return StorageError, "see the message"


_DENIED = (
    "_AUTHENTICATION",
    "SASL_AUTHENTICATION_FAILED",
    "UNSUPPORTED_SASL_MECHANISM",
    "ILLEGAL_SASL_STATE",
    "SECURITY_DISABLED",
    "UNACCEPTABLE_CREDENTIAL",
)
_UNKNOWN = (
    "UNKNOWN_TOPIC_OR_PART",
    "_UNKNOWN_TOPIC",
    "_UNKNOWN_PARTITION",
    "UNKNOWN_TOPIC_ID",
)
_UNREACHABLE = (
    "_TRANSPORT",
    "_ALL_BROKERS_DOWN",
    "_RESOLVE",
    "_TIMED_OUT",
    "_TIMED_OUT_QUEUE",
    "_MSG_TIMED_OUT",
    "NETWORK_EXCEPTION",
    "REQUEST_TIMED_OUT",
    "COORDINATOR_NOT_AVAILABLE",
)
