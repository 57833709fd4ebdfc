"""TPC-H: its tables as a generator makes them, and its queries with the specification's parameters.

The queries are those of the TPC-H specification, revision 3, with the parameters that it gives for
validation, written in this repository's format.
"""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")
QUERIES = {
    int(path.stem[1:]): path.read_text()
    for path in sorted((Path(__file__).parent / "queries").glob("q*.sql"))
}


def generate(folder: Path, scale: float) -> dict[str, pa.Table]:
    """Return the eight tables.

    Args:
        folder: where the generator writes.
        scale: the scale factor; 1 is 6 million line items.
    """
    program = Path(sysconfig.get_path("scripts")) / "tpchgen-cli"
    command = [str(program), "parquet", "-s", str(scale), "-o", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    return {table: pq.read_table(folder / f"{table}.parquet") for table in TABLES}
