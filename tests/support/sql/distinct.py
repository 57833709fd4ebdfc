"""Queries with several DISTINCT aggregates, over the tables of the generator."""

#: Queries with several DISTINCT aggregates, which the planner would make two groups of.
SEVERAL_DISTINCT = (
    "SELECT a AS x, count(DISTINCT b) AS y, count(DISTINCT d) AS z, count(*) AS n FROM r GROUP BY a",
    "SELECT a AS x, count(DISTINCT b) FILTER (WHERE c > 0) AS y, count(DISTINCT b) AS z,"
    " count(DISTINCT d) FILTER (WHERE c > 0 OR b > 2) AS w, count(*) FILTER (WHERE c > 0) AS n,"
    " sum(b) FILTER (WHERE c > 0) AS s FROM r GROUP BY a",
    "SELECT d AS x, sum(DISTINCT a) AS y, count(DISTINCT a, b) AS z, avg(b) AS w, min(f) AS n,"
    " count(DISTINCT a + 1) AS s FROM r GROUP BY d",
    "SELECT a AS x, d AS y, count(DISTINCT a) AS z, count(DISTINCT b) AS n FROM r GROUP BY a, d",
    "SELECT count(DISTINCT a) AS x, count(DISTINCT d) FILTER (WHERE b > 1) AS y, count(*) AS n FROM r",
    "SELECT a AS x, max(n) FILTER (WHERE level = 1) AS y, count(b) FILTER (WHERE level = 0) AS z"
    " FROM (SELECT a, b, grouping_id() AS level, count(*) AS n FROM r"
    " GROUP BY GROUPING SETS ((a, b), (a))) GROUP BY a",
    "SELECT a AS x, max(n) FILTER (WHERE level = 0) AS y FROM (SELECT a, b, grouping_id() AS level,"
    " count(*) AS n FROM r GROUP BY GROUPING SETS ((a, b), (a))) GROUP BY a",
    "SELECT count(DISTINCT a) AS x, count(DISTINCT b) AS y FROM r",
    "SELECT count(DISTINCT a) AS x, count(DISTINCT d) FILTER (WHERE b > 2) AS y, sum(DISTINCT b) AS z,"
    " sum(a) AS w FROM r",
    "SELECT count(DISTINCT a) AS x, count(DISTINCT b) AS y, count(DISTINCT a, b) AS z,"
    " count(DISTINCT d) AS u, count(DISTINCT a, d) AS w, max(b) AS m FROM r",
    "SELECT max(n) FILTER (WHERE level = 1) AS x, count(b) FILTER (WHERE level = 0) AS y,"
    " sum(level) AS z FROM (SELECT a, b, grouping_id() AS level, count(*) AS n FROM r"
    " GROUP BY GROUPING SETS ((a, b), (a)))",
    "SELECT max(n) FILTER (WHERE level = 1) AS x, count(b) FILTER (WHERE level = 2) AS y"
    " FROM (SELECT a, b, grouping_id() AS level, count(*) AS n FROM r"
    " GROUP BY GROUPING SETS ((a, b), (a)))",
)
