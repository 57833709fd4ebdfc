-- What customers of each city have spent, kept up to date while orders and users change.
-- Run it: headrace sql examples/sql/shop.sql --storage state/shop --available-now
SET 'pipeline.name' = 'shop';

CREATE TABLE orders (
    id       BIGINT,
    customer STRING NOT NULL,
    cents    BIGINT NOT NULL,
    at       TIMESTAMP NOT NULL,
    PRIMARY KEY (id) NOT ENFORCED,
    WATERMARK FOR at AS at - INTERVAL '5' SECOND
) WITH (
    'connector' = 'filesystem',
    'path' = 'shop-data/orders/*.jsonl',
    'format' = 'json',
    'change.op-column' = 'op'
);

CREATE TABLE customers (
    name STRING,
    city STRING NOT NULL,
    at   TIMESTAMP NOT NULL,
    PRIMARY KEY (name) NOT ENFORCED,
    WATERMARK FOR at AS at
) WITH (
    'connector' = 'filesystem',
    'path' = 'shop-data/customers/*.jsonl',
    'format' = 'json'
);

CREATE VIEW paid AS
SELECT o.id, c.city, o.cents
FROM orders o JOIN customers c ON o.customer = c.name
WHERE o.cents > 0;

CREATE MATERIALIZED VIEW cities (PRIMARY KEY (city) NOT ENFORCED) AS
SELECT city, count(*) AS orders, sum(cents) AS cents
FROM paid
GROUP BY city;

CREATE TABLE city_totals (
    city   STRING NOT NULL,
    orders BIGINT,
    cents  BIGINT,
    PRIMARY KEY (city) NOT ENFORCED
) WITH (
    'connector' = 'jdbc',
    'url' = 'sqlite:///shop-data/totals.db',
    'table-name' = 'city_totals'
);

INSERT INTO city_totals
SELECT city, orders, cents FROM cities WHERE cents >= 1000;
