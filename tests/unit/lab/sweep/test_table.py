"""Tests that tables of rows are written and read bit for bit, and that other files are refused."""

import math
from pathlib import Path

import pytest

from distrust.common.errors import BadParameter
from distrust.lab.sweep.row import Row
from distrust.lab.sweep.table import Format, read_rows, write_rows

ROW = Row(
    experiment="small",
    panel='ε = 0.1; wide, "quoted"',
    series="a\nb",
    digest="0123456789ab",
    repetition=0,
    seed=2**63 - 1,
    policy="successive-elimination",
    mechanism="identity",
    calibration="exact",
    epsilon=None,
    horizon=2000,
    clients=1990,
    regret=0.1 + 0.2,
    chosen=None,
    best=3,
    best_dropped=True,
    best_dropped_at=1000,
    widths=10,
    width_failures=0,
    failure=None,
    aborted=0,
    unfinished=10,
    payload_bits=1 / 3,
    modulus_bits=5e-324,
    bits=1e300,
    seconds=0.25,
    curve=[math.pi, 1e-17, 0.1 + 0.2],
)
OTHER = ROW.model_copy(
    update={
        "repetition": 1,
        "epsilon": 0.1,
        "chosen": 0,
        "best_dropped": False,
        "best_dropped_at": None,
        "failure": 0.1,
    }
)
COUNTED = OTHER.model_copy(update={"indefinite": 3})


@pytest.mark.parametrize("form", ["parquet", "csv"])
@pytest.mark.parametrize("rows", [[ROW, OTHER], [OTHER], [], [ROW, COUNTED]], ids=["two", "one", "none", "counted"])
def test_rows_come_back_bit_for_bit(form: Format, rows: list[Row], tmp_path: Path) -> None:
    path = tmp_path / f"rows.{form}"
    write_rows(rows, path, form)
    assert read_rows(path) == rows
    assert [file.name for file in tmp_path.iterdir()] == [path.name]  # nothing half-written stays


def test_a_table_has_the_columns_of_a_row_in_its_order(tmp_path: Path) -> None:
    import pyarrow.parquet as pq  # noqa: PLC0415 - slow to load

    write_rows([ROW], tmp_path / "rows.csv", "csv")
    write_rows([ROW], tmp_path / "rows.parquet", "parquet")
    head = (tmp_path / "rows.csv").read_text("utf-8").splitlines()[0]
    old = [name for name in Row.model_fields if name != "indefinite"]
    assert head.split(",") == old == pq.read_schema(tmp_path / "rows.parquet").names
    write_rows([ROW, COUNTED], tmp_path / "rows.parquet", "parquet")  # what rows had no values of came later
    assert pq.read_schema(tmp_path / "rows.parquet").names == [*old, "indefinite"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        pytest.param("rows.csv", b"panel,series\na,b\n", id="other-columns"),
        pytest.param("rows.csv", b"", id="empty"),
        pytest.param("rows.csv", b"\xff\xfe\x00", id="not-text"),
        pytest.param("rows.csv", b"9" * 200_000, id="longest-field"),
        pytest.param("rows.parquet", b"PAR1", id="not-parquet"),
        pytest.param("rows.xml", b"", id="another-format"),
        pytest.param("gone.csv", None, id="not-there"),
        pytest.param("gone.parquet", None, id="not-there-either"),
    ],
)
def test_a_file_that_is_no_table_is_refused(name: str, content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadParameter) as refused:
        read_rows(path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_file_that_is_not_there_is_said_to_be_missing(form: str, tmp_path: Path) -> None:
    with pytest.raises(BadParameter, match="No such file"):
        read_rows(tmp_path / f"gone.{form}")
