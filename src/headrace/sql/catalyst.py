"""Planning by Spark's Catalyst: the only module of :mod:`headrace.sql` that knows Spark.

Catalyst parses a query, gives each expression its type, writes every conversion out, and turns
subqueries into joins. This module declares the tables in a session of its own, and reads the
optimized plan into plain data. Everything else works on that.

It uses private API: the Java object behind a DataFrame (``_jdf``), and through it the classes of
Catalyst, which Spark may change in any release. There is no public way to a typed plan. What this
module does not know, it refuses by name; see :data:`_FIELDS`.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from headrace.errors import PipelineError
from headrace.sql.ir.relations import Column
from headrace.sql.ir.types import SqlType
from headrace.sql.translation.clock import CLASSES, CLOCK_TABLES, clocked
from headrace.sql.translation.functions import AGGREGATES, SCALAR, WINDOW
from headrace.sql.translation.refused import check_classes
from headrace.sql.translation.tree import Node, Planned

#: The names of a leaf's columns begin with this, so that a leaf tells which table it is.
_PREFIX = "hr"
_LEAF = re.compile(r"`?hr:(\w+):(\d+)`?")
_RULES = "org.apache.spark.sql.catalyst.optimizer."
#: Rules that pay for a batch, where rows are read again, but cost state where they are kept.
_EXCLUDED = (
    "InferFiltersFromConstraints",
    "InferFiltersFromGenerate",
    "InferWindowGroupLimit",
    "PushLeftSemiLeftAntiThroughJoin",
    "LimitPushDown",
    "LimitPushDownThroughWindow",
    "DecimalAggregates",
    "MergeSubplans",
    "MergeScalarSubqueries",
)
_SETTINGS = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.caseSensitive": "false",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    "spark.sql.optimizer.excludedRules": ",".join(_RULES + rule for rule in _EXCLUDED),
    # IN stays a list, and nothing is rewritten for the sake of files and partitions
    "spark.sql.optimizer.inSetConversionThreshold": "1000000",
    "spark.sql.optimizer.dynamicPartitionPruning.enabled": "false",
    "spark.sql.optimizer.runtime.bloomFilter.enabled": "false",
    "spark.sql.cbo.enabled": "false",
    "spark.sql.maxToStringFields": "100",
}


_LOGICAL = "org.apache.spark.sql.catalyst.plans.logical."
_COMMANDS = (_LOGICAL + "Command", _LOGICAL + "ParsedStatement", _LOGICAL + "CompoundBody")


def _name(node: Any) -> str:
    """Return the name of a node's class; that of a Scala object ends with a dollar sign."""
    return str(node.nodeName()).rstrip("$")


def _text(value: Any) -> str:
    return str(value.toString()) if hasattr(value, "toString") else str(value)


def _mode(node: Any) -> str:
    return _text(node.evalContext().evalMode()).lower()


def _ansi(is_ansi: bool) -> str:
    return "ansi" if is_ansi else "legacy"


def _sequence(values: Any) -> list[Any]:
    return [values.apply(at) for at in range(values.size())]


def _literal(value: Any) -> Any:
    """Return a value of Catalyst's as one of Python's; texts and decimals as text."""
    if value is None or isinstance(value, bool | int | float | bytes | str):
        return value
    if isinstance(value, bytearray):
        return bytes(value)
    return _text(value)


def _constant(value: Any, kind: Any) -> Any:
    """Return a constant of Catalyst's; an array as the list of its elements."""
    if value is None or _name_of_type(kind) != "array":
        return _literal(value)
    element = kind.elementType()
    return [
        None if value.isNullAt(at) else _constant(value.get(at, element), element)
        for at in range(value.numElements())
    ]


def _name_of_type(kind: Any) -> str:
    return str(kind.typeName())


class _Reader:
    """Reads a plan into plain data.

    Args:
        sql: the text of the query, for errors.
        names: the names of each table's columns, likewise.
    """

    def __init__(self, sql: str, names: Mapping[str, Sequence[str]]) -> None:
        self._sql = sql
        self._names = names
        self._types: dict[str, Any] = {}

    # -- plans --------------------------------------------------------------------------------

    def plan(self, node: Any) -> Node:
        """Return a plan as plain data."""
        name = _name(node)
        read = _PLANS.get(name)
        if read is None:
            raise self.unknown(name, str(node.simpleString(200)))
        inputs = tuple(self.plan(child) for child in _sequence(node.children()))
        return Node(name, inputs, fields=read(self, node))

    def expressions(self, nodes: Any) -> list[Node]:
        """Return a sequence of expressions as plain data."""
        return [self.expression(one) for one in _sequence(nodes)]

    def output(self, plan: Any) -> list[tuple[str, str]]:
        """Return name and id of each column that a plan puts out, in order."""
        return [(one.name(), _text(one.exprId())) for one in _sequence(plan.output())]

    def optional(self, option: Any) -> Node | None:
        """Return an optional expression as plain data."""
        return None if option.isEmpty() else self.expression(option.get())

    # -- expressions --------------------------------------------------------------------------

    def expression(self, node: Any) -> Node:
        """Return an expression as plain data."""
        name = _name(node)
        if name not in _FIELDS:
            raise self.unknown(name, str(node.sql()))
        if name in _UNTYPED:
            kind, nullable = None, True
        else:
            kind, nullable = self._type(node.dataType()), bool(node.nullable())
        fields = {key: read(node) for key, read in _FIELDS[name].items()}
        if name == "ScalarSubquery":
            fields["plan"] = self.plan(node.plan())
            fields["output"] = self.output(node.plan())
        if name == "AggregateExpression":
            fields["filter"] = self.optional(node.filter())
            inner: tuple[Node, ...] = (self.expression(node.aggregateFunction()),)
        else:
            inner = tuple(self.expression(child) for child in _sequence(node.children()))
        return Node(name, inner, kind, nullable, fields)

    def _type(self, kind: Any) -> Any:
        text = kind.json()
        if text not in self._types:
            self._types[text] = json.loads(text)
        return self._types[text]

    def unknown(self, name: str, sql: str) -> PipelineError:
        """Return the error for a class that is not known here."""
        return PipelineError(
            f"a view cannot have {_readable(name)}: {self._named(sql)[:300]}",
            place=self._sql,
            remedy="write the query without it; docs/reference/sql.md lists what views can have. "
            f"(Catalyst calls it {name}.)",
        )

    def _named(self, text: str) -> str:
        """Return a text with the names that the user has given to columns."""
        return _LEAF.sub(lambda found: self._names[found[1]][int(found[2])], text)

    def rows(self, node: Any) -> list[list[Any]]:
        """Return the rows of a relation that stands in the query."""
        kinds = [one.dataType() for one in _sequence(node.output())]
        return [
            [_constant(row.get(at, kind), kind) for at, kind in enumerate(kinds)]
            for row in _sequence(node.data())
        ]


def _readable(name: str) -> str:
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    return f"the function or clause {words.upper()}"


def _join_fields(reader: _Reader, node: Any) -> dict[str, Any]:
    kind = node.joinType()
    condition = reader.optional(node.condition())
    if _text(kind).startswith("Existence"):
        exists = reader.expression(kind.exists())
        return {"kind": "EXISTENCE", "exists": exists, "condition": condition}
    return {"kind": kind.sql(), "exists": None, "condition": condition}


@contextlib.contextmanager
def _without_log() -> Iterator[None]:
    """Keep PySpark from writing an error to the log, too, which is raised here."""
    from pyspark.logger import PySparkLogger

    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


_Plans = dict[str, Callable[[_Reader, Any], dict[str, Any]]]
_PLANS: _Plans = {
    "LogicalRDD": lambda reader, node: {"output": reader.expressions(node.output())},
    "LocalRelation": lambda reader, node: {
        "output": reader.expressions(node.output()),
        "rows": reader.rows(node),
    },
    "OneRowRelation": lambda reader, node: {},
    "Project": lambda reader, node: {"list": reader.expressions(node.projectList())},
    "Filter": lambda reader, node: {"condition": reader.expression(node.condition())},
    "Join": _join_fields,
    "Aggregate": lambda reader, node: {
        "keys": reader.expressions(node.groupingExpressions()),
        "list": reader.expressions(node.aggregateExpressions()),
    },
    "Union": lambda reader, node: {
        "output": reader.expressions(node.output()),
        "inputs": [reader.output(child) for child in _sequence(node.children())],
    },
    "Expand": lambda reader, node: {
        "projections": [reader.expressions(one) for one in _sequence(node.projections())],
        "output": reader.expressions(node.output()),
    },
    "Sort": lambda reader, node: {"order": reader.expressions(node.order())},
    "GlobalLimit": lambda reader, node: {"limit": reader.expression(node.limitExpr())},
    "LocalLimit": lambda reader, node: {"limit": reader.expression(node.limitExpr())},
    "Offset": lambda reader, node: {"offset": reader.expression(node.offsetExpr())},
    "Window": lambda reader, node: {
        "functions": reader.expressions(node.windowExpressions()),
        "partition": reader.expressions(node.partitionSpec()),
        "order": reader.expressions(node.orderSpec()),
    },
    "Generate": lambda reader, node: {
        "generator": reader.expression(node.generator()),
        "outer": bool(node.outer()),
        "output": reader.expressions(node.generatorOutput()),
    },
    "RepartitionByExpression": lambda reader, node: {},
    "Repartition": lambda reader, node: {},
    "RebalancePartitions": lambda reader, node: {},
}

_Field = Callable[[Any], Any]
_EXPR_ID: _Field = lambda node: _text(node.exprId())  # noqa: E731
_NAMED: dict[str, _Field] = {"name": lambda node: node.name(), "id": _EXPR_ID}
_MODE: dict[str, _Field] = {"mode": _mode}
_EVAL_MODE: dict[str, _Field] = {"mode": lambda node: _text(node.evalMode()).lower()}
_FAILS: dict[str, _Field] = {"mode": lambda node: _ansi(node.failOnError())}
_ANSI: dict[str, _Field] = {"mode": lambda node: _ansi(node.ansiEnabled())}
_NULLS: dict[str, _Field] = {"ignore_nulls": lambda node: bool(node.ignoreNulls())}
_WITH_MODE = (
    *("Add", "Subtract", "Multiply", "Divide", "IntegralDivide", "Remainder", "Pmod"),
    "Sum",
)
#: Expressions that are no functions.
_STRUCTURAL = (
    *("CaseWhen", "CreateNamedStruct", "ReplicateRows"),
    *("WindowExpression", "WindowSpecDefinition", "UnspecifiedFrame"),
    *("CurrentRow", "UnboundedPreceding", "UnboundedFollowing", "Explode", "PosExplode"),
)

#: Every class of expression that is read, with what is read of it beside type and arguments.
_FIELDS: dict[str, dict[str, _Field]] = {
    **{name: {} for name in (*SCALAR, *AGGREGATES, *WINDOW, *_STRUCTURAL)},
    **dict.fromkeys(("AttributeReference", "Alias"), _NAMED),
    **dict.fromkeys(_WITH_MODE, _MODE),
    **dict.fromkeys(("UnaryMinus", "Abs", "MakeDate"), _FAILS),
    **dict.fromkeys(("Round", "BRound"), _ANSI),
    **dict.fromkeys(("ElementAt", "GetArrayItem"), _FAILS),
    "Size": {"legacy": lambda node: bool(node.legacySizeOfNull())},
    **dict.fromkeys(("First", "Last", "NthValue", "Lag", "Lead"), _NULLS),
    "Average": _EVAL_MODE,
    "Cast": _EVAL_MODE,
    "Literal": {"value": lambda node: _constant(node.value(), node.dataType())},
    "ScalarSubquery": {"id": _EXPR_ID, "outer": lambda node: node.outerAttrs().size()},
    "SortOrder": {
        "ascending": lambda node: _text(node.direction()).startswith("Asc"),
        "nulls_first": lambda node: _text(node.nullOrdering()).startswith("NullsFirst"),
    },
    "AggregateExpression": {"distinct": lambda node: bool(node.isDistinct())},
    "GetStructField": {"ordinal": lambda node: int(node.ordinal())},
    "Like": {"escape": lambda node: str(node.escapeChar())},
    "SpecifiedWindowFrame": {"unit": lambda node: _text(node.frameType())},
}
#: Expressions that have no type of their own.
_UNTYPED = frozenset(
    (
        *("SortOrder", "WindowSpecDefinition", "SpecifiedWindowFrame", "UnspecifiedFrame"),
        *("CurrentRow", "UnboundedPreceding", "UnboundedFollowing", "ReplicateRows"),
    )
)


class Catalyst:
    """Spark's planner, with a pipeline's tables.

    It works in a session of its own beside the given one, so it changes none of its settings and
    views. All times are in UTC, and ANSI mode is on.

    Args:
        session: a Spark session. It plans, and runs no job.

    Example::

        catalyst = Catalyst(spark)
        catalyst.declare("bid", [Column("auction", BIGINT, nullable=False)])
        planned = catalyst.plan("SELECT count(*) FROM bid")
    """

    def __init__(self, session: Any) -> None:
        self._session = session.newSession()
        self._names: dict[str, list[str]] = {}
        for key, value in _SETTINGS.items():
            self._session.conf.set(key, value)
        for name, columns in CLOCK_TABLES.items():
            self.declare(name, columns)

    def declare(self, name: str, columns: Sequence[Column]) -> None:
        """Declare a table.

        Args:
            name: its name in queries.
            columns: its columns.
        """
        from pyspark.sql.types import DataType, StructField, StructType

        fields = [
            StructField(
                f"{_PREFIX}:{name}:{at}",
                DataType.fromDDL(_ddl(column.type)),
                column.nullable,
            )
            for at, column in enumerate(columns)
        ]
        self._names[name] = [column.name for column in columns]
        # A relation over an RDD: the optimizer knows nothing of its rows, and keeps its name.
        rows = self._session.sparkContext.emptyRDD()
        frame = self._session.createDataFrame(rows, StructType(fields))
        frame.toDF(*(column.name for column in columns)).createOrReplaceTempView(_quoted(name))

    def declare_view(self, name: str, sql: str) -> None:
        """Declare a view, so that later queries can read it by its name.

        It is expanded where it is read. Equal parts of several plans are found afterwards.
        """
        asks = CLASSES & _classes(self._executed(sql, sql))
        text = clocked(sql) if asks else sql
        self._checked(sql, lambda: self._session.sql(text)).createOrReplaceTempView(_quoted(name))

    def plan(self, sql: str) -> Planned:
        """Return what Catalyst makes of a query.

        Raises:
            PipelineError: if it is no query over the declared tables, or has something that is not
                known here.
        """
        execution = self._executed(sql, sql)
        # before constants are folded: the current time would become one
        classes = _classes(execution)
        optimized = None
        if CLASSES & classes:
            execution, optimized = self._by_clock(sql, classes)
        check_classes(_classes(execution), sql)
        optimized = optimized or self._checked(sql, execution.optimizedPlan)
        reader = _Reader(sql, self._names)
        return Planned(sql, reader.plan(optimized), tuple(reader.output(optimized)))

    def _by_clock(self, sql: str, classes: Iterable[str]) -> tuple[Any, Any]:
        """Return the execution and the plan of a query in which the current time is no constant.

        Raises:
            PipelineError: if it stands where no subquery can.
        """
        try:
            execution = self._executed(clocked(sql), sql)
            return execution, self._checked(sql, execution.optimizedPlan)
        except PipelineError:
            check_classes(classes, sql)
            raise

    def _executed(self, text: str, sql: str) -> Any:
        """Return the execution of a query, which plans it when it is asked to.

        ``DataFrame`` would run a command at once, so the text is parsed first.

        Args:
            text: the query.
            sql: the query as the user has written it, for errors.
        """
        from py4j.java_gateway import is_instance_of

        state = self._session._jsparkSession.sessionState()
        parsed = self._checked(sql, lambda: state.sqlParser().parsePlan(text))
        gateway = self._session.sparkContext._gateway
        for kind in _COMMANDS:
            if is_instance_of(gateway, parsed, kind):
                raise PipelineError(
                    "a view is a SELECT; this is a command", place=sql, remedy="write a query"
                )
        frame = self._checked(sql, lambda: self._session.sql(text))
        return frame._jdf.queryExecution()

    @staticmethod
    def _checked(sql: str, act: Callable[[], Any]) -> Any:
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        try:
            with _without_log():
                return act()
        except PySparkException as error:
            text = str(error).split("\n\n", maxsplit=1)[0].split("JVM stacktrace")[0].strip()
            raise PipelineError(f"Spark cannot plan this query: {text}", place=sql) from error
        except Py4JJavaError as error:
            text = str(error.java_exception.getMessage()).split("\n", maxsplit=1)[0]
            raise PipelineError(f"Spark cannot plan this query: {text}", place=sql) from error


def _quoted(name: str) -> str:
    """Return a name as Spark's parser takes it, whatever its characters."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def _classes(execution: Any) -> set[str]:
    """Return the names of the classes in the analysed plan of a query."""
    analyzed = execution.analyzed().toJSON()
    return set(re.findall(r'"class":"[\w.]+\.(\w+)\$?"', analyzed))


def _ddl(kind: SqlType) -> str:
    """Return a type as Spark's DDL spells it."""
    if kind.is_array:
        return f"array<{_ddl(kind.element)}>"
    names = {"day_time": "interval day to second", "year_month": "interval year to month"}
    return names.get(kind.name, str(kind))
