"""Queries over the tables of the generator that need what random ones seldom have."""

#: Queries whose NULLs, empty tables or missing rows need more than a join or a sum.
SPECIAL = (
    "SELECT a AS x FROM r WHERE b NOT IN (SELECT b FROM s)",
    "SELECT a AS x, d AS y FROM r WHERE d NOT IN (SELECT d FROM s WHERE s.a = r.a)",
    "SELECT a AS x FROM r WHERE d NOT IN (SELECT d FROM s WHERE s.a <=> r.a)",
    "SELECT a AS x FROM r WHERE (a, d) NOT IN (SELECT a, d FROM s)",
    "SELECT a AS x, (SELECT b FROM s WHERE a = 77 LIMIT 1) AS y FROM r",
    "SELECT (SELECT max(b) FROM s) AS x, count(*) AS y FROM r",
    "SELECT a AS x, bit_xor(b) AS y, bit_and(a) AS z, bit_or(a) AS w FROM r GROUP BY a",
    "SELECT v.x, r.a FROM r JOIN (VALUES (1, 'a'), (2, NULL)) AS v(x, y) ON r.a = v.x",
    "SELECT 1 AS x UNION ALL SELECT a FROM r",
    "SELECT a AS x FROM r WHERE EXISTS (SELECT 1 FROM s)",
    "SELECT d AS x, n FROM (SELECT d, row_number() OVER (PARTITION BY g ORDER BY b, a, c, d, e, f)"
    " AS n FROM r) WHERE n < 3",
)

#: Queries of which the planner keeps rows without a column.
BARE = (
    "SELECT DISTINCT 1 AS x FROM (SELECT * FROM r UNION ALL SELECT * FROM s) WHERE a IN (1, NULL)",
    "SELECT max('a') AS x, count(*) AS n FROM (SELECT * FROM r UNION ALL SELECT * FROM s)",
    "SELECT count(*) AS n FROM (SELECT 1 FROM r UNION ALL SELECT 2 UNION ALL SELECT 3 FROM s)",
    "SELECT count(*) AS n FROM (SELECT a FROM r UNION ALL VALUES (1), (2))",
    "SELECT 'x' AS x FROM r CROSS JOIN s",
    "SELECT count(*) AS n FROM (SELECT 1 FROM r UNION ALL SELECT 1 FROM s) CROSS JOIN s",
    "SELECT count(*) AS n FROM r LEFT JOIN s ON r.a = s.a",
    "SELECT b AS x FROM r WHERE EXISTS (SELECT 1 FROM s UNION ALL SELECT 1 FROM r)",
    "SELECT b AS x FROM r WHERE NOT EXISTS (SELECT 1 FROM s WHERE a > 3)",
    "SELECT 1 AS x FROM (SELECT 1 FROM r UNION SELECT 1 FROM s)",
    "SELECT count(*) AS n FROM (SELECT 1 FROM r INTERSECT ALL SELECT 1 FROM s)",
    "SELECT count(*) AS n FROM (SELECT 1 FROM r EXCEPT ALL SELECT 1 FROM s)",
    "SELECT 1 AS x FROM r HAVING count(*) > 2",
    "SELECT 1 AS x FROM (SELECT a, b FROM r GROUP BY a, b WITH ROLLUP)",
    "SELECT count(*) AS n FROM (SELECT row_number() OVER (ORDER BY a, b, c, d, e, f) FROM r)",
    "SELECT (SELECT count(*) FROM r) AS x FROM s",
)

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

#: Conditions that compare rows with the rows of subqueries: one or several, with and without NULL.
COMPARED = (
    "SELECT a AS x, d AS y FROM r WHERE b > (SELECT avg(b) FROM s) AND a > 1",
    "SELECT a AS x FROM r WHERE b = (SELECT max(b) FROM s)",
    "SELECT a AS x, b AS y FROM r WHERE b <=> (SELECT min(b) FROM s WHERE a = 3)",
    "SELECT a AS x, c AS y FROM r WHERE b BETWEEN (SELECT min(a) FROM s) AND (SELECT avg(b) FROM r)",
    "SELECT a AS x FROM r WHERE a + (SELECT min(b) FROM s) > (SELECT max(a) FROM s)",
    "SELECT d AS x FROM r WHERE b > (SELECT avg(b) FROM s) OR a = (SELECT max(a) FROM s) OR d = 'x'",
    "SELECT a AS x FROM r WHERE NOT b > (SELECT avg(b) FROM s) AND a < (SELECT max(a) FROM s)",
    "SELECT a AS x, (SELECT avg(b) FROM s) AS y FROM r WHERE b > (SELECT avg(b) FROM s)",
    "SELECT a AS x FROM r WHERE (SELECT count(*) FROM s) > 3",
    "SELECT count(*) AS n FROM r WHERE (SELECT avg(b) FROM s) > (SELECT avg(b) FROM r)",
    "SELECT a AS x, sum(b) AS y FROM r GROUP BY a HAVING sum(b) > (SELECT sum(b) / 4 FROM r)",
    "SELECT a AS x, sum(b) AS y FROM r GROUP BY a HAVING sum(b) = (SELECT max(b) FROM s) OR a = 1",
    "SELECT a AS x FROM r WHERE b > (SELECT b FROM s WHERE a = 77 LIMIT 1) OR d IS NULL",
    "SELECT r.a AS x FROM r LEFT JOIN s ON r.a = s.a AND s.b > (SELECT avg(b) FROM s)"
    " WHERE coalesce(s.b, 0) < (SELECT max(b) FROM r)",
)

#: Queries of whose plans a wrong thing can be read.
PLANS = (
    "SELECT * FROM (SELECT a AS x, b, d FROM r ORDER BY a, b, d LIMIT 3) LIMIT 5 OFFSET 2",
    "SELECT * FROM (SELECT a AS x, b, d FROM r ORDER BY a, b, d LIMIT 4) OFFSET 1",
    "SELECT * FROM (SELECT * FROM (SELECT a AS x, b, d FROM r ORDER BY a, b, d LIMIT 5 OFFSET 1)"
    " LIMIT 3 OFFSET 1) LIMIT 1 OFFSET 1",
    "SELECT * FROM (SELECT a AS x, b, d FROM r ORDER BY a, b, d LIMIT 2) OFFSET 3",
    "SELECT a AS x, f, count(*) OVER (ORDER BY f RANGE BETWEEN INTERVAL 1 DAY PRECEDING"
    " AND INTERVAL 30 DAYS FOLLOWING) AS n FROM r",
    "SELECT a AS x, count(*) OVER (ORDER BY h DESC RANGE BETWEEN INTERVAL 31 MINUTES PRECEDING"
    " AND INTERVAL 10 MINUTES PRECEDING) AS n FROM r",
    "SELECT a AS x, (SELECT max(b) FROM s) AS y, (SELECT min(b) FROM s WHERE a > 0) AS z FROM r"
    " WHERE b >= (SELECT min(b) FROM s)",
    "SELECT a AS x, b IN (SELECT b FROM s) AS y, b NOT IN (SELECT b FROM s) AS z,"
    " (a, d) NOT IN (SELECT a, d FROM s WHERE s.g = r.g) AS w FROM r",
    "SELECT 9 IN (SELECT b FROM s) AS x, 9 NOT IN (SELECT b FROM s) AS y",
    "SELECT a AS x FROM r WHERE (b IN (SELECT b FROM s)) IS NULL OR (b IN (SELECT b FROM s)) = FALSE",
    "SELECT a AS x, count(DISTINCT 1) AS y, count(DISTINCT 'a') FILTER (WHERE g) AS z FROM r"
    " GROUP BY a",
    "SELECT count(DISTINCT 1) AS x FROM r",
    "SELECT a AS x, bit_xor(DISTINCT b) AS y, bit_xor(b) AS z FROM r GROUP BY a",
    "SELECT bit_xor(DISTINCT a) AS x FROM r",
    "SELECT count(struct(a, g)) AS x, count(struct(a)) FILTER (WHERE g) AS y FROM r",
    "SELECT a AS x, g, rank() OVER (ORDER BY struct(a, g) DESC NULLS FIRST) AS n FROM r",
    "SELECT a AS x, g, rank() OVER (ORDER BY struct(a, g) NULLS LAST) AS n FROM r",
    "SELECT w.start AS x, w.end AS y, a, count(*) AS n FROM (SELECT window(h, '1 day') AS w, a FROM r)"
    " GROUP BY GROUPING SETS ((w, a), (a), ())",
)

#: Structs that go through set operations.
STRUCTS = (
    "SELECT x.start AS x, count(*) AS n FROM (SELECT window(f, '1 day') AS x FROM r UNION ALL"
    " SELECT window(f, '1 day') FROM s) GROUP BY x",
    "SELECT x.a AS x, x.b AS y FROM (SELECT struct(a, b) AS x FROM r UNION ALL SELECT NULL)",
    "SELECT x.a AS x, x.b AS y, n FROM (SELECT struct(a, b) AS x, c > 0 AS n FROM r"
    " INTERSECT ALL SELECT struct(a, b), c > 0 FROM s)",
    "SELECT x.a AS x, x.b AS y FROM (SELECT struct(a, b) AS x FROM r EXCEPT ALL SELECT struct(a, b)"
    " FROM s)",
    "SELECT x.a AS x, x.b AS y FROM (SELECT struct(a, b) AS x FROM r EXCEPT SELECT struct(a, b)"
    " FROM s WHERE b > 2)",
    "SELECT x.a AS x, x.z.b AS y FROM (SELECT struct(a, struct(b, c) AS z) AS x FROM r UNION"
    " SELECT struct(a, struct(b, c) AS z) FROM s)",
)
