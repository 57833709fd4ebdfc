"""Ready-made computations: windows, joins, running aggregates, and others.

You add an operator to a pipeline with ``Pipeline.compute``, like a computation of your own. It
produces on one output, ``out``. Its state and the columns of its output follow from the streams
that it reads. All operators are columnar: the cost of a step depends on the records and rows that
it touches.
"""

from headrace.ops.aggregates import Aggregate, Count, Max, Mean, Min, Sum
from headrace.ops.calendar import CalendarWindows
from headrace.ops.dedup import Dedup
from headrace.ops.firsts import First, Last
from headrace.ops.hot import two_phase
from headrace.ops.join import Join
from headrace.ops.lookup import Lookup
from headrace.ops.packed import ApproxCountDistinct, Collect, CountDistinct, Quantiles
from headrace.ops.reduce import Reduce
from headrace.ops.running import Running
from headrace.ops.sessions import Session
from headrace.ops.stateless import Filter, FlatMap, Map
from headrace.ops.top import LastN, TopN
from headrace.ops.windows import Sliding, Tumbling, TumblingCount

__all__ = [
    "Aggregate",
    "ApproxCountDistinct",
    "CalendarWindows",
    "Collect",
    "Count",
    "CountDistinct",
    "Dedup",
    "Filter",
    "First",
    "FlatMap",
    "Join",
    "Last",
    "LastN",
    "Lookup",
    "Map",
    "Max",
    "Mean",
    "Min",
    "Quantiles",
    "Reduce",
    "Running",
    "Session",
    "Sliding",
    "Sum",
    "TopN",
    "Tumbling",
    "TumblingCount",
    "two_phase",
]
