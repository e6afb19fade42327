"""Writes the same rows as polars, pyarrow and DuckDB write them by default, and two that must be refused.

    python tests/reference/tables.py        # needs polars, pyarrow, duckdb

`cargo test --release --lib data::` reads them: a stage of one's own may write its tables with any of these.
"""

import pathlib

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

OUT = pathlib.Path(__file__).parent / "fixtures/tables"
ROWS = {
    "text": ["a", ""],
    "note": [None, "n"],
    "score": [-0.5, 1.1754943508222875e-38],
    "tokens": [[], [1, 2]],
    "mask": [[True], []],
    "names": [["é"], []],
    "correct": [False, None],
}


def main():
    OUT.mkdir(exist_ok=True)
    pl.DataFrame(ROWS).write_parquet(OUT / "polars.parquet")
    pq.write_table(pa.table(ROWS), OUT / "pyarrow.parquet")
    rows = pa.table(ROWS)
    duckdb.sql("select * from rows").write_parquet(str(OUT / "duckdb.parquet"))
    pl.DataFrame({**ROWS, "tokens": [[], [-1, 2]]}).write_parquet(OUT / "negative_token.parquet")
    pl.DataFrame({**ROWS, "names": [["é"], [None]]}).write_parquet(OUT / "missing_name.parquet")


main()
