"""What the papers say, to stand beside what is measured here.

Megaphone: Hoffmann, Lattuada, McSherry, Kalavri, Liagouris, Roscoe: "Megaphone: Latency-conscious state
migration for distributed streaming dataflows" (PVLDB 12(9), 2019). Four machines of four sockets of ten
cores each; 16 workers.

MillWheel: Akidau, Balikov, Bekiroğlu, Chernyak, Haberman, Lax, McVeety, Mills, Nordstrom, Whittle:
"MillWheel: Fault-Tolerant Stream Processing at Internet Scale" (PVLDB 6(11), 2013). 200 CPUs.
"""

from __future__ import annotations

#: Megaphone, Table 1: query → lines of code on Megaphone, and on timely dataflow alone.
LINES = {
    "q1": (16, 12),
    "q2": (18, 14),
    "q3": (41, 58),
    "q4": (74, 128),
    "q5": (46, 73),
    "q6": (74, 130),
    "q7": (54, 55),
    "q8": (29, 58),
}

#: Megaphone, section 5.1: query → what is said of its migrations.
QUERIES = {
    "q1": "no state, no effect",
    "q2": "no state, no effect",
    "q3": "all at once above 100 ms, batched some 10 ms",
    "q4": "all at once more than two seconds, batched up to 100 ms more",
    "q5": "all at once ten times what each second brings, batched not to be seen",
    "q6": "as query 4",
    "q7": "no difference: next to no state",
    "q8": "as others of much state",
}

#: Megaphone, section 5.2, 4 million records/s: log2 of bins (None: without) → p90, p99, p99.99, max in ms.
Percentiles = dict[int | None, tuple[float, float, float, float]]
HASH_COUNT_256M: Percentiles = {
    None: (1.64, 2.88, 12.06, 19.92),
    4: (4.46, 7.60, 18.87, 25.17),
    6: (4.46, 6.55, 13.11, 26.21),
    8: (4.46, 6.03, 9.96, 16.78),
    10: (4.19, 6.82, 16.25, 23.07),
    12: (4.98, 7.08, 19.92, 24.12),
    14: (8.13, 11.53, 23.07, 30.41),
    16: (20.97, 27.26, 60.82, 83.89),
    18: (159.38, 192.94, 209.72, 226.49),
    20: (1140.85, 1409.29, 1476.40, 1543.50),
}
KEY_COUNT_256M: Percentiles = {
    None: (1.51, 1.70, 4.46, 14.16),
    4: (1.64, 3.67, 12.58, 19.92),
    6: (1.64, 2.75, 11.01, 20.97),
    8: (1.70, 2.49, 9.44, 19.92),
    10: (1.70, 2.36, 7.08, 15.20),
    12: (1.77, 2.88, 9.96, 20.97),
    14: (2.49, 4.46, 7.86, 19.92),
    16: (22.02, 26.21, 32.51, 46.14),
    18: (234.88, 268.44, 301.99, 335.54),
    20: (838.86, 1610.61, 1879.05, 1946.16),
}
KEY_COUNT_8192M: Percentiles = {
    None: (1.57, 2.36, 4.98, 14.68),
    4: (1.90, 3.28, 4.72, 7.34),
    6: (1.84, 3.28, 6.03, 18.87),
    8: (1.84, 3.54, 5.24, 12.58),
    10: (1.84, 3.28, 5.77, 13.11),
    12: (1.90, 3.67, 5.24, 9.44),
    14: (7.34, 16.78, 75.50, 100.66),
    16: (30.41, 35.65, 41.94, 50.33),
    18: (268.44, 318.77, 335.54, 385.88),
    20: (1006.63, 1610.61, 1811.94, 1879.05),
}

#: Megaphone, section 5.3: what is varied → what its figures show. (They are plots; there is no table.)
SWEEPS = {
    "bins": "with more bins fluid and batched wait less, for as long; all at once stays as it is",
    "keys": "with as many bins, longest wait and duration grow with the keys",
    "keys and bins": "with bins that grow with the keys the longest wait stays, the duration grows",
    "load": "level up to 16 million records/s, too much at 32; batched and fluid 10 to 100 times below",
}

#: Megaphone, section 5.3.5: the memory of each process, with 16 billion keys in 4096 bins.
MEMORY = "35 GiB, some 30 GiB more while all moves at once, and no more when fluid or batched"

#: MillWheel, section 8.1: productions → p50, p95 in ms; weak ones are not exactly once, too.
LATENCY = {"weak": (3.6, 30.0), "strong, record ids": (33.7, 93.8)}
#: MillWheel, section 8.2: how far the first stage's watermark was behind, and at most each other's, in ms.
LAG_FIRST_MS, LAG_MORE_MS = 1_800.0, 200.0
