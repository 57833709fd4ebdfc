"""A registry of schemas, by which programs agree on what is in messages.

Each schema has a number, which messages name. The client is that of confluent-kafka; it is imported
when it is first needed. Confluent's registry speaks its protocol, and so do Redpanda, Karapace and
Apicurio (at ``/apis/ccompat/v7``).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

from headrace.errors import (
    HeadraceError,
    NotFound,
    PipelineError,
    StorageDenied,
    StorageError,
)
from headrace.errors.printable import without_secrets
from headrace.messages.packages import check_installed

_AUTH = "basic.auth.user.info"
#: What settings are called whose values are secrets.
_SECRETS = (_AUTH, "password", "secret", "token")


#: Returns the subject under which the schemas of a topic's keys or values are: from topic and part.
Subject = Callable[[str, str], str]


class Registered(NamedTuple):
    """A schema of a registry.

    Attributes:
        id: its number.
        kind: ``AVRO``, ``PROTOBUF`` or ``JSON``.
        text: the schema.
        references: the schemas that it refers to, each after those that it refers to itself.
    """

    id: int
    kind: str
    text: str
    references: tuple[str, ...] = ()


class Registry:
    """A registry of schemas, as Confluent's. :class:`Avro` and :class:`Protobuf` take one.

    Args:
        url: where it is: ``"http://host:8081"``, or several with commas.
        settings: settings of confluent-kafka's ``SchemaRegistryClient``, such as
            ``{"basic.auth.user.info": "ann:…", "ssl.ca.location": …}``. A value may be a function
            without arguments that returns it. It is called in each process, so that a secret can come
            from the environment of that process: ``{"basic.auth.user.info": user_and_password}``.
        subject: the subject of a topic's keys or values: a function of the topic and of ``"key"`` or
            ``"value"``. By default it is ``TOPIC-key`` or ``TOPIC-value``.
        auto_register: whether a schema that is written and not there is registered. If not, it is
            refused.

    It is plain data, and connects to nothing before it is used. Secrets are not in its ``repr``, nor in
    errors. Whoever has a pickle of it has its secrets, unless they come from functions.

    Example::

        hr.messages.Registry(
            "https://registry:8081",
            {"basic.auth.user.info": lambda: os.environ["REGISTRY_USER"]},
            auto_register=False,
        )

    Raises:
        PipelineError: for a URL or settings that cannot be right.
    """

    def __init__(
        self,
        url: str,
        settings: Mapping[str, Any] | None = None,
        *,
        subject: Subject | None = None,
        auto_register: bool = True,
    ) -> None:
        given = dict(settings or {})
        if "url" in given:
            raise PipelineError("the URL is given twice", remedy="leave url out of settings=")
        self.url, user = _without_user(url)
        if user is not None:
            if _AUTH in given:
                raise PipelineError(
                    "the user of the registry is given twice",
                    remedy=f"leave the user out of the URL, or {_AUTH} out of settings=",
                )
            given[_AUTH] = user
        self.auto_register = auto_register
        self._subject = subject
        self._settings = {name: of for name, of in given.items() if not _is_secret(name)}
        # (what a cached property holds is in pickles, and in no fingerprint)
        self._secrets = {name: of for name, of in given.items() if _is_secret(name)}
        self._client: Any = None
        self._known: dict[tuple[int, str | None], Registered] = {}

    @functools.cached_property
    def _secrets(self) -> dict[str, Any]:
        return {}

    def __repr__(self) -> str:
        return f"Registry({self.url!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Registry):
            return NotImplemented
        return self._as_compared() == other._as_compared()

    def __hash__(self) -> int:
        return hash((self.url, self.auto_register))

    def _as_compared(self) -> tuple[Any, ...]:
        return self.url, self.auto_register, self._subject, self._settings, sorted(self._secrets)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None, "_known": {}}

    def __deepcopy__(self, memo: dict[int, Any]) -> Registry:
        return self  # (whatever it learns is true for all)

    # -- schemas ------------------------------------------------------------------------------

    def subject(self, topic: str, part: str) -> str:
        """Return the subject of a topic's keys or values.

        Args:
            topic: the topic.
            part: ``"key"`` or ``"value"``.
        """
        return f"{topic}-{part}" if self._subject is None else self._subject(topic, part)

    def by_id(self, number: int, form: str | None = None) -> Registered:
        """Return the schema of a number. It never changes, so it is asked for once.

        Args:
            number: the number.
            form: the form of the text: ``"serialized"`` for what Protobuf's libraries read, where the
                registry can give that.

        Raises:
            NotFound: if there is none.
            StorageError: if the registry does not answer.
        """
        if (number, form) not in self._known:
            found = self._requested(
                f"schema {number} cannot be fetched",
                lambda client: client.get_schema(number, fmt=form),
                missing=f"there is no schema {number}",
            )
            self._known[number, form] = self._registered(number, found)
        return self._known[number, form]

    def newest(self, subject: str) -> Registered:
        """Return the newest schema of a subject.

        Raises:
            NotFound: if there is none.
            StorageError: if the registry does not answer.
        """
        found = self._requested(
            f"the newest schema of {subject!r} cannot be fetched",
            lambda client: client.get_latest_version(subject),
            missing=f"there is no schema of {subject!r}",
        )
        return self._registered(found.schema_id, found.schema)

    def register(self, subject: str, kind: str, text: str) -> int:
        """Return the number of a schema that is written; it is registered if it is not there.

        Args:
            subject: where it belongs.
            kind: ``AVRO`` or ``PROTOBUF``.
            text: the schema.

        Raises:
            NotFound: if it is not there, and ``auto_register`` is false.
            PipelineError: if the registry refuses it, such as for its rules of compatibility.
            StorageError: if the registry does not answer.
        """
        schema = _library().Schema(text, kind)
        if self.auto_register:
            number: int = self._requested(
                f"the schema of {subject!r} cannot be registered",
                lambda client: client.register_schema(subject, schema),
            )
            return number
        found = self._requested(
            f"the schema of {subject!r} cannot be looked up",
            lambda client: client.lookup_schema(subject, schema),
            missing=f"the schema that would be written is not one of {subject!r}",
        )
        there: int = found.schema_id
        return there

    def _registered(self, number: int, schema: Any) -> Registered:
        references: list[str] = []
        self._add_references(schema, references)
        kind = schema.schema_type or "AVRO"
        return Registered(number, kind, schema.schema_str, tuple(references))

    def _add_references(self, schema: Any, found: list[str]) -> None:
        for of in schema.references or ():
            fetch = operator.methodcaller("get_version", of.subject, of.version)
            what = f"schema {of.subject!r}, version {of.version}, cannot be fetched"
            inner = self._requested(what, fetch).schema
            self._add_references(inner, found)
            if inner.schema_str not in found:
                found.append(inner.schema_str)

    # -- the client ---------------------------------------------------------------------------

    def _requested(self, what: str, ask: Callable[[Any], Any], *, missing: str = "") -> Any:
        """Return what the client says.

        Args:
            what: what cannot be done, for errors.
            ask: asks it.
            missing: what it means that there is none.
        """
        if self._client is None:
            self._client = self._connected()
        try:
            return ask(self._client)
        except Exception as error:
            raise self._failed(error, what, missing) from None

    def _connected(self) -> Any:
        library = _library()
        settings = {**self._settings, **self._secrets}
        plain = {name: of() if callable(of) else of for name, of in settings.items()}
        try:
            return library.SchemaRegistryClient({"url": self.url, **plain})
        except (ValueError, TypeError, OSError) as error:
            raise PipelineError(
                f"the client of the registry refuses its settings: {self._safe(error)}",
                place=self.place,
                remedy="settings are those of confluent-kafka's SchemaRegistryClient",
            ) from None

    @property
    def place(self) -> str:
        """Where the registry is, for people."""
        return f"the registry at {without_secrets(self.url)}"

    def _failed(self, error: Exception, what: str, missing: str) -> HeadraceError:
        status = getattr(error, "http_status_code", None)
        why = self._safe(error)
        if status == 404 and missing:
            return NotFound(
                missing,
                place=self.place,
                remedy="register the schema, or correct the URL, the topic or subject=",
            )
        if status in (401, 403):
            return StorageDenied(
                f"{what}: {why}", place=self.place, remedy=f"correct {_AUTH} in settings="
            )
        if status in (409, 422):
            return PipelineError(
                f"{what}: {why}",
                place=self.place,
                remedy="change the stream so that its schema goes with those before it, or write to "
                "another topic",
            )
        return StorageError(
            f"{what}: {why}",
            place=self.place,
            remedy="look whether the registry runs, and can be reached from this machine",
        )

    def _safe(self, error: Exception) -> str:
        """Return what an error says, without secrets."""
        text = without_secrets(str(error) or type(error).__name__)
        for value in self._secrets.values():
            for part in value.split(":", 1) if isinstance(value, str) else ():
                text = text.replace(part, "***") if part else text
        return text


def _library() -> Any:
    check_installed("Registry", "confluent_kafka.schema_registry")
    import confluent_kafka.schema_registry

    return confluent_kafka.schema_registry


def _is_secret(name: str) -> bool:
    return any(part in name for part in _SECRETS)


def _without_user(url: str) -> tuple[str, str | None]:
    """Return addresses without the user, and the user with the password.

    Raises:
        PipelineError: if they are none.
    """
    user, plain = None, []
    for one in url.split(","):
        parts = urlsplit(one.strip())
        if parts.scheme not in ("http", "https", "mock") or not parts.netloc:
            raise PipelineError(
                f"{without_secrets(url)!r} is not the URL of a registry",
                remedy='give its address: "http://host:8081"',
            )
        name, at, host = parts.netloc.rpartition("@")
        user = unquote(name) if at else user
        plain.append(urlunsplit(parts._replace(netloc=host)))
    return ",".join(plain), user
