"""NEXMark's queries as views of SQL, over the tables ``person``, ``auction`` and ``bid``.

They are nexmark-flink's, with the rules that the modules of the queries name. A view is what the query
gives over all events so far. So it decides again with each event, and takes back what it said before,
where the computations by hand wait until a window ends or an auction closes. When all events have come,
both have the same answer.

Query 10 writes files, and has nothing to compute. Query 12 counts by the time of the clock, and a view
does not depend on that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

import headrace as hr
from headrace.nexmark.events import schema_of
from headrace.nexmark.queries.market import Market
from headrace.nexmark.timeline import Kind
from headrace.sql.views import Views
from headrace.zsets import ZStream


def _winners(columns: str) -> str:
    """Return a query for some columns of each auction ``a`` and of the bid ``b`` that won it."""
    return f"""
    SELECT {columns}
    FROM auction a JOIN bid b
        ON b.auction = a.id AND b.date_time BETWEEN a.date_time AND a.expires
    QUALIFY row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.event) = 1"""


_RANKS = {
    "": "true",
    "rank1_": "price < 10000",
    "rank2_": "price >= 10000 AND price < 1000000",
    "rank3_": "price >= 1000000",
}


def _statistics(keys: str) -> str:
    """Return queries 15 and 16: how many bids, bidders and auctions, in all and by rank."""
    counts = [f"count(*) FILTER (WHERE {which}) AS {rank}bids" for rank, which in _RANKS.items()]
    counts += [
        f"count(DISTINCT {column}) FILTER (WHERE {which}) AS {rank}{column}s"
        for column in ("bidder", "auction")
        for rank, which in _RANKS.items()
    ]
    return f"SELECT {keys},\n    " + ",\n    ".join(counts) + "\nFROM bid GROUP BY ALL"


#: The text of each query.
QUERIES: dict[str, str] = {
    "q0": "SELECT auction, bidder, price, date_time, extra FROM bid",
    "q1": """
SELECT auction AS key, bidder, date_time, extra, 0.908 * CAST(price AS DECIMAL(19, 0)) AS price
FROM bid""",
    "q2": "SELECT auction, price FROM bid WHERE auction % 123 = 0",
    "q3": """
SELECT p.name, p.city, p.state, a.id
FROM auction a JOIN person p ON a.seller = p.id
WHERE a.category = 10 AND p.state IN ('OR', 'ID', 'CA')""",
    "q4": f"""
SELECT category AS key, avg(price) AS average
FROM ({_winners("a.category, b.price")})
GROUP BY category""",
    "q5": """
SELECT auction, count(*) AS bids, window.end AS window_end
FROM bid GROUP BY auction, window(date_time, '10 seconds', '2 seconds')
QUALIFY bids = max(bids) OVER (PARTITION BY window_end)""",
    "q6": f"""
SELECT seller AS key, id AS auction, avg(price) OVER (
    PARTITION BY seller ORDER BY closed, id ROWS BETWEEN 9 PRECEDING AND CURRENT ROW) AS average
FROM ({_winners("a.id, a.seller, a.expires AS closed, b.price")})""",
    "q7": """
WITH placed AS (SELECT *, window(date_time, '10 seconds').end AS window_end FROM bid),
    best AS (SELECT window_end, max(price) AS price FROM placed GROUP BY window_end)
SELECT price, window_end, auction, bidder, date_time, extra
FROM placed JOIN best USING (window_end, price)""",
    "q8": """
WITH new AS (SELECT id, name, window(date_time, '10 seconds').start AS window_start FROM person),
    selling AS (SELECT seller, window(date_time, '10 seconds').start AS window_start FROM auction)
SELECT DISTINCT id, name, window_start
FROM new JOIN selling USING (window_start) WHERE id = seller""",
    "q9": f"""
SELECT id AS key, item_name, description, initial_bid, reserve, expires, seller, category,
    price, bid_event AS event, bidder, channel
FROM ({_winners("a.*, b.price, b.event AS bid_event, b.bidder, b.channel")})""",
    "q11": """
WITH apart AS (
    SELECT bidder, date_time, coalesce(
        date_time - lag(date_time) OVER (PARTITION BY bidder ORDER BY date_time)
            >= INTERVAL 10 SECONDS, true) AS begins
    FROM bid),
numbered AS (
    SELECT *, count_if(begins) OVER (PARTITION BY bidder ORDER BY date_time) AS number
    FROM apart)
SELECT bidder AS key, count(*) AS bids, min(date_time) AS window_start,
    max(date_time) + INTERVAL 10 SECONDS AS window_end
FROM numbered GROUP BY bidder, number""",
    "q13": """
SELECT b.auction AS key, b.bidder, b.price, b.date_time, s.value
FROM bid b JOIN side s ON b.auction % 10000 = s.number""",
    "q14": """
SELECT auction AS key, bidder, 0.908 * CAST(price AS DECIMAL(19, 0)) AS price, date_time, extra,
    CASE WHEN hour(date_time) BETWEEN 8 AND 18 THEN 'dayTime'
        WHEN hour(date_time) <= 6 OR hour(date_time) >= 20 THEN 'nightTime' ELSE 'otherTime' END
        AS time_type,
    length(extra) - length(replace(extra, 'c', '')) AS c_counts
FROM bid
WHERE 0.908 * CAST(price AS DECIMAL(19, 0)) > 1000000
    AND 0.908 * CAST(price AS DECIMAL(19, 0)) < 50000000""",
    "q15": _statistics("CAST(date_time AS DATE) AS key"),
    "q16": _statistics("channel AS key0, CAST(date_time AS DATE) AS key1"),
    "q17": """
SELECT auction AS key, CAST(date_time AS DATE) AS day, count(*) AS bids,
    count_if(price < 10000) AS rank1, count_if(price >= 10000 AND price < 1000000) AS rank2,
    count_if(price >= 1000000) AS rank3, min(price) AS least, max(price) AS most,
    avg(price) AS mean, sum(price) AS total
FROM bid GROUP BY ALL""",
    "q18": """
SELECT bidder AS key0, auction AS key1, event, price, channel, url, extra
FROM bid
QUALIFY row_number() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC, event DESC) = 1""",
    "q19": """
SELECT auction AS key, event, bidder, price,
    row_number() OVER (PARTITION BY auction ORDER BY price DESC, event) AS rank
FROM bid
QUALIFY rank <= 10""",
    "q20": """
SELECT b.auction AS key, item_name, initial_bid, reserve, seller, bidder, price, channel
FROM bid b JOIN auction a ON a.id = b.auction WHERE category = 10""",
    "q21": """
SELECT * FROM (
    SELECT auction AS key, bidder, price, channel, coalesce(
        CASE lower(channel) WHEN 'apple' THEN '0' WHEN 'google' THEN '1'
            WHEN 'facebook' THEN '2' WHEN 'baidu' THEN '3' END,
        nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '')) AS channel_id
    FROM bid)
WHERE channel_id IS NOT NULL""",
    "q22": """
SELECT auction AS key, bidder, price, channel, split_part(url, '/', 4) AS dir1,
    split_part(url, '/', 5) AS dir2, split_part(url, '/', 6) AS dir3
FROM bid""",
}


class Side(msgspec.Struct):
    """A row of the table of query 13."""

    number: int
    value: int


SIDE = [Side(number, number) for number in range(10_000)]


def views_of(queries: Sequence[str], market: Market, planner: Any) -> dict[str, ZStream]:
    """Return some queries as views. Only columns are read of which one of them speaks."""
    text = "\n".join(QUERIES[query] for query in queries)
    words, read = set(re.findall(r"\w+", text)), set(re.findall(r"(?:FROM|JOIN) (\w+)", text))
    views = Views(planner=planner)
    for name, (kind, bring) in _TABLES.items():
        if name in read:
            columns = [one for one in schema_of(kind).names if one in words]
            views.table(name, hr.zsets.table(name, getattr(market, bring)(*columns)))
    if "side" in read:
        side = hr.sources.Iterable(SIDE, Side, event_time=_at_first)
        views.table("side", hr.zsets.table("side", market.pipeline.inject("side", side)))
    return {query: views.view(query, QUERIES[query]) for query in queries}


_TABLES = {
    "person": (Kind.PERSON, "people"),
    "auction": (Kind.AUCTION, "auctions"),
    "bid": (Kind.BID, "bids"),
}


def _at_first(_: Any) -> int:
    return 0
