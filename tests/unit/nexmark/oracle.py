"""NEXMark's queries in SQL over all events at once, for DuckDB: it knows neither streams nor state.

Times are compared as they are; a query that answers again and again has its last answers here.
"""

from __future__ import annotations

from collections.abc import Mapping

import duckdb
import pyarrow as pa

from headrace.nexmark.events import columns_of, read
from headrace.nexmark.timeline import Kind, Timeline

#: Closed auctions with their winning bid: price, and of equal prices the earliest event.
WINNERS = """
    SELECT a.*, b.price, b.event AS bid_event, b.bidder, b.channel, a.expires AS closed
    FROM auction a JOIN bid b
        ON b.auction = a.id AND b.date_time BETWEEN a.date_time AND a.expires
    QUALIFY row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.event) = 1
"""

RANKS = {
    "": "true",
    "rank1_": "price < 10000",
    "rank2_": "price >= 10000 AND price < 1000000",
    "rank3_": "price >= 1000000",
}


def statistics(key: str) -> str:
    """Return queries 15 and 16: how many bids, bidders and auctions there are, in all and by rank."""
    what = {"bids": "event", "bidders": "bidder", "auctions": "auction"}
    counts = [
        f"count(DISTINCT {column}) FILTER ({which}) AS {rank}{name}"
        for name, column in what.items()
        for rank, which in RANKS.items()
    ]
    return f"SELECT {key}, {', '.join(counts)} FROM bid GROUP BY ALL"


QUERIES = {
    "q0": "SELECT auction, bidder, price, date_time, extra FROM bid",
    "q1": """SELECT auction AS key, bidder, date_time, extra,
        CAST(0.908 AS DECIMAL(4, 3)) * CAST(price AS DECIMAL(19, 0)) AS price FROM bid""",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3": """SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p ON a.seller = p.id
        WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
    "q4": f"SELECT category AS key, avg(price) AS average FROM ({WINNERS}) GROUP BY category",
    "q5": """
        WITH counts AS (
            SELECT auction, w.ends AS ends, count(*) AS bids
            FROM bid, unnest(generate_series(
                time_bucket(INTERVAL 2 seconds, date_time) + INTERVAL 2 seconds,
                time_bucket(INTERVAL 2 seconds, date_time) + INTERVAL 10 seconds,
                INTERVAL 2 seconds)) AS w(ends)
            GROUP BY ALL)
        SELECT auction, bids, ends AS window_end FROM counts
        QUALIFY bids = max(bids) OVER (PARTITION BY ends)""",
    "q6": f"""SELECT seller AS key, id AS auction, avg(price) OVER (
            PARTITION BY seller ORDER BY closed, id ROWS BETWEEN 9 PRECEDING AND CURRENT ROW) AS average
        FROM ({WINNERS})""",
    "q7": """SELECT price, time_bucket(INTERVAL 10 seconds, date_time) + INTERVAL 10 seconds AS window_end,
            auction, bidder, date_time, extra FROM bid
        QUALIFY price = max(price) OVER (PARTITION BY time_bucket(INTERVAL 10 seconds, date_time))""",
    "q8": """
        WITH new AS (
            SELECT id, name, time_bucket(INTERVAL 10 seconds, date_time) AS window_start FROM person),
        selling AS (SELECT seller, time_bucket(INTERVAL 10 seconds, date_time) AS window_start FROM auction)
        SELECT DISTINCT id, name, window_start
        FROM new JOIN selling USING (window_start) WHERE id = seller""",
    "q9": f"""SELECT id AS key, item_name, description, initial_bid, reserve, expires, seller, category,
            price, bid_event AS event, bidder, channel
        FROM ({WINNERS})""",
    "q11": """
        WITH apart AS (
            SELECT bidder, date_time,
                coalesce(date_time - lag(date_time) OVER one >= INTERVAL 10 seconds, true) AS begins
            FROM bid WINDOW one AS (PARTITION BY bidder ORDER BY date_time)),
        numbered AS (
            SELECT *, count_if(begins) OVER (PARTITION BY bidder ORDER BY date_time) AS number FROM apart)
        SELECT bidder AS key, count(*) AS bids, min(date_time) AS window_start,
            max(date_time) + INTERVAL 10 seconds AS window_end
        FROM numbered GROUP BY bidder, number""",
    "q13": "SELECT auction AS key, bidder, price, date_time, auction % 10000 AS value FROM bid",
    "q14": """SELECT auction AS key, bidder, price * 0.908::DECIMAL(4, 3) AS price, date_time, extra,
            CASE WHEN hour(date_time) BETWEEN 8 AND 18 THEN 'dayTime'
                WHEN hour(date_time) <= 6 OR hour(date_time) >= 20 THEN 'nightTime' ELSE 'otherTime' END
                AS time_type,
            length(extra) - length(replace(extra, 'c', '')) AS c_counts
        FROM (SELECT * REPLACE (price::DECIMAL(19, 0) AS price) FROM bid)
        WHERE price * 0.908 > 1000000 AND price * 0.908 < 50000000""",
    "q15": statistics("date_time::DATE AS key"),
    "q16": statistics("channel AS key0, date_time::DATE AS key1"),
    "q17": """SELECT auction AS key, date_time::DATE AS day, count(*) AS bids,
            count_if(price < 10000) AS rank1, count_if(price >= 10000 AND price < 1000000) AS rank2,
            count_if(price >= 1000000) AS rank3, min(price) AS least, max(price) AS most,
            avg(price) AS mean, sum(price)::BIGINT AS total
        FROM bid GROUP BY ALL""",
    "q18": """SELECT bidder AS key0, auction AS key1, event, price, channel, url, extra FROM bid
        QUALIFY row_number() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC, event DESC) = 1""",
    "q19": """SELECT auction AS key, event, bidder, price,
            row_number() OVER (PARTITION BY auction ORDER BY price DESC, event) AS rank FROM bid
        QUALIFY rank <= 10""",
    "q20": """SELECT b.auction AS key, item_name, initial_bid, reserve, seller, bidder, price, channel
        FROM bid b JOIN auction a ON a.id = b.auction WHERE category = 10""",
    "q21": """SELECT auction AS key, bidder, price, channel, coalesce(
            CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1' WHEN 'facebook' THEN '2'
                WHEN 'baidu' THEN '3' END,
            nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '')) AS channel_id
        FROM bid WHERE channel_id IS NOT NULL""",
    "q22": """SELECT auction AS key, bidder, price, channel, split_part(url, '/', 4) AS dir1,
        split_part(url, '/', 5) AS dir2, split_part(url, '/', 6) AS dir3 FROM bid""",
}


class Oracle:
    """Answers queries from all events of a timeline that has an end, or from the first that arrive."""

    def __init__(self, timeline: Timeline, first: int | None = None) -> None:
        kinds = (Kind.PERSON, Kind.AUCTION, Kind.BID)
        self._connection = _connected({kind: all_events(timeline, kind, first) for kind in kinds})
        self._answers: dict[str, pa.Table] = {}

    def answer(self, query: str) -> pa.Table:
        """Return a query's answer."""
        if query not in self._answers:
            self._answers[query] = self._connection.sql(QUERIES[query]).to_arrow_table()
        return self._answers[query]


def all_events(timeline: Timeline, kind: Kind, first: int | None = None) -> pa.Table:
    """Return all events of a kind, or the first, with all columns, in the order of their arrival."""
    end = timeline.events if first is None else first
    assert end is not None
    return pa.concat_tables(read(timeline, kind, 0, end, columns_of(kind, None)))


def difference(expected: pa.Table, found: pa.Table) -> tuple[int, int]:
    """Return how many rows are missing, and how many are too many, each as often as it is.

    Compared are the columns that are expected; floats to six digits after the point.
    """
    columns = ", ".join(
        f"round({field.name}, 6)" if pa.types.is_floating(field.type) else f'"{field.name}"'
        for field in expected.schema
    )
    one, other = f"SELECT {columns} FROM expected", f"SELECT {columns} FROM found"
    with _connected({"expected": expected, "found": found}) as connection:
        missing, more = [
            connection.sql(f"SELECT count(*) FROM ({a} EXCEPT ALL {b})").fetchall()[0][0]
            for a, b in ((one, other), (other, one))
        ]
    return missing, more


def _connected(tables: Mapping[str, pa.Table]) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    for name, table in tables.items():
        connection.register(name, table)
    return connection


def last_of(table: pa.Table, names: list[str]) -> pa.Table:
    """Return of all rows that have the same columns the last."""
    latest = {
        row: at for at, row in enumerate(zip(*(table[n].to_pylist() for n in names), strict=True))
    }
    return table.take(pa.array(sorted(latest.values())))
