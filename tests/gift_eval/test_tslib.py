"""The sets of the Time-Series-Library: splits and scaling against its loader's rules, its file layouts, bad files."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.preprocessing import StandardScaler

from hrx.errors import HrxError
from hrx.gift_eval import UnusableSeries, cut, cut_region, open_source
from hrx.gift_eval.catalogue import tslib_sets
from hrx.gift_eval.tslib import split_rows

ROWS = {each.name: each.rows or 0 for each in tslib_sets()}
FILES = {each.name: each.file for each in tslib_sets()}
Values = NDArray[np.float64]


def numbers(rows: int, columns: int, seed: int = 0) -> Values:
    """(T, S): a daily wave with noise, each column at another level; five decimals, as a file holds."""
    rng = np.random.default_rng(seed)
    wave = np.sin(np.arange(rows) / 4)[:, None] + 0.3 * rng.standard_normal((rows, columns))
    return np.round(wave + 10 * np.arange(1, columns + 1), 5)


def write(root: Path, name: str, values: Values) -> Path:
    """A stand-in of the official file, in its format."""
    path = root / FILES[name]
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npz":
        np.savez(path, data=np.stack([values, -values], axis=2))
    elif path.suffix == ".txt":
        np.savetxt(path, values, fmt="%.5f", delimiter=",")
    else:
        header = b"date,SWDR (W/m\xb2)," if name == "Weather" else b"date,HUFL,"
        lines = [f"2016-07-01 00:00:00,{row[0]:.5f},{row[-1]:.5f}" for row in values]
        path.write_bytes(header + b"OT\n" + "\n".join(lines).encode() + b"\n")
    return path


def loader_windows(name: str, values: Values, lookback: int, horizon: int) -> tuple[Values, Values]:
    """Every test window of the library's loader for one column (T,): lookbacks (n, L) and truths (n, H)."""
    rows = len(values)
    if name.startswith("ETT"):
        month = 30 * 24 * (4 if name.startswith("ETTm") else 1)
        train, border = 12 * month, (16 * month - lookback, 20 * month)
    elif name.startswith("PEMS"):
        train, border = int(0.6 * rows), (int(0.8 * rows), rows)
    else:
        train, border = int(rows * 0.7), (rows - int(rows * 0.2) - lookback, rows)
    scaler = StandardScaler().fit(values[:train, None])
    data = scaler.transform(values[:, None])[slice(*border), 0]
    count = len(data) - lookback - horizon + 1
    x = np.stack([data[i : i + lookback] for i in range(count)])
    y = np.stack([data[i + lookback : i + lookback + horizon] for i in range(count)])
    return x, y


def assert_windows_of_the_loader(root: Path, name: str, column: Values, index: int = 0) -> None:
    series = open_source(f"tslib:{root}:{name}")[0].read(index)
    ours = cut_region(series, 96, 24, 10**6)
    x, y = loader_windows(name, column, 96, 24)
    np.testing.assert_allclose(ours.x, x, rtol=0, atol=1e-9)
    np.testing.assert_allclose(ours.y, y, rtol=0, atol=1e-9)
    some = cut(series, 96, 24, windows=4, seed=1)
    np.testing.assert_allclose(some.x, x[some.starts - ours.starts[0]], rtol=0, atol=1e-9)


@pytest.mark.parametrize(("name", "columns", "index"), [("ETTh1", 2, 0), ("Exchange", 2, 0), ("PEMS08", 5, 3)])
def test_the_test_windows_are_those_of_the_librarys_loader(tmp_path: Path, name: str, columns: int, index: int) -> None:
    values = numbers(ROWS[name], columns)
    write(tmp_path, name, values)
    column = values[:, -1] if FILES[name].endswith("csv") else values[:, index]
    assert_windows_of_the_loader(tmp_path, name, column, index)


def test_the_splits_are_the_published_rows() -> None:
    splits = {each.name: tuple(split_rows(each))[:3] for each in tslib_sets()}
    assert splits == {
        "ETTh1": (8640, 11520, 14400), "ETTh2": (8640, 11520, 14400), "ETTm1": (34560, 46080, 57600),
        "ETTm2": (34560, 46080, 57600), "Electricity": (18412, 21044, 26304), "Traffic": (12280, 14036, 17544),
        "Weather": (36887, 42157, 52696), "Exchange": (5311, 6071, 7588), "Solar": (36792, 42048, 52560),
        "PEMS03": (15724, 20966, 26208), "PEMS04": (10195, 13593, 16992), "PEMS07": (16934, 22579, 28224),
        "PEMS08": (10713, 14284, 17856),
    }  # fmt: skip
    assert {each.name for each in tslib_sets() if split_rows(each).lookback_inside} == {
        "PEMS03", "PEMS04", "PEMS07", "PEMS08",
    }  # fmt: skip


def test_a_directory_opens_every_set_that_it_holds_and_names_choose_among_them(tmp_path: Path) -> None:
    weather, solar = numbers(ROWS["Weather"], 2), numbers(ROWS["Solar"], 3)
    write(tmp_path, "Weather", weather)
    write(tmp_path, "Solar", solar)
    write(tmp_path, "ETTh2", numbers(ROWS["ETTh2"], 2)).rename(tmp_path / "ETTh2.csv")
    assert {d.name: d.count for d in open_source(f"tslib:{tmp_path}")} == {"ETTh2": 1, "Solar": 3, "Weather": 1}
    chosen = open_source(f"tslib:{tmp_path}:weather,Solar")
    assert [(d.name, d.frequency, d.season, d.domain) for d in chosen] == [
        ("Weather", "10T", 144, "General"),
        ("Solar", "10T", 144, "General"),
    ]
    assert chosen[0].read(0).item == "OT"
    np.testing.assert_array_equal(chosen[0].read(0).values, weather[:, 1])
    assert chosen[1].read(2).item == "2"
    np.testing.assert_array_equal(chosen[1].read(2).values, solar[:, 2])
    assert list(chosen[1].lengths()) == [ROWS["Solar"]] * 3
    assert "rows 1 to 36887 scale a series, rows 42158 to 52696 of 52696 are the test split" in chosen[0].note


def test_a_setting_that_the_test_split_cannot_hold_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "Exchange", numbers(ROWS["Exchange"], 2))
    write(tmp_path, "PEMS08", numbers(ROWS["PEMS08"], 1))
    exchange, pems = (open_source(f"tslib:{tmp_path}:{name}")[0].read(0) for name in ("Exchange", "PEMS08"))
    with pytest.raises(UnusableSeries, match=r"the official test split has 1517 values, too few .* 96x1518"):
        cut(exchange, 96, 1518, 1, 0)
    assert len(cut_region(exchange, 3000, 1517, 9).x) == 1
    with pytest.raises(UnusableSeries, match=r"the official test split has 3572 values, too few .* 3500x96"):
        cut_region(pems, 3500, 96, 9)


def test_the_split_is_part_of_the_identity_of_a_series(tmp_path: Path) -> None:
    write(tmp_path, "ETTh1", numbers(ROWS["ETTh1"], 2))
    series = open_source(f"tslib:{tmp_path}:ETTh1")[0].read(0)
    assert series.identity == ["ETTh1", "OT", "H", [8640, 11520, 14400, False]]


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("ETTh1", b"time,OT\n1,2\n", "ETTh1: .*columns time, OT; expected date first, and OT"),
        ("ETTh1", b"date,HUFL\n1,2\n", "ETTh1: .*columns date, HUFL; expected date first, and OT"),
        ("ETTh1", b"", "ETTh1: ETT-small/ETTh1.csv is empty"),
        ("ETTh1", b"date,OT\n2016,1.5\n2017,x\n", "ETTh1.csv, row 3, column 2: 'x' is not a number"),
        ("ETTh1", b"date,OT\n2016,1.5\n", "ETTh1.csv has 1 rows of values; the official file has 17420"),
        ("Solar", b"1,2\n3,?\n", "solar_AL.txt, row 2, column 2: '[?]' is not a number"),
        ("PEMS08", b"PK nonsense", "PEMS08.npz cannot be read: .*Expected an .npz file with the array data"),
    ],
)
def test_a_bad_file_is_named_with_what_was_expected(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    path = tmp_path / FILES[name]
    path.parent.mkdir()
    path.write_bytes(content)
    (dataset,) = open_source(f"tslib:{tmp_path}")
    with pytest.raises(HrxError, match=sentence) as raised:
        dataset.read(0)
    assert str(tmp_path) not in str(raised.value)


@pytest.mark.parametrize("shape", [(4, 3), (0, 2, 1)])
def test_an_array_of_another_shape_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    (tmp_path / "PEMS").mkdir()
    np.savez(tmp_path / FILES["PEMS03"], data=np.zeros(shape))
    (dataset,) = open_source(f"tslib:{tmp_path}")
    assert "expected numbers (rows, sensors, features)" in dataset.damage


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("tslib", "tslib: needs a directory"),
        ("tslib:{}/none", "is not a directory"),
        ("tslib:{}", "No set of the Time-Series-Library is under .* such as .*csv"),
        ("tslib:{}:ETTh9", "Unknown set of the Time-Series-Library 'ETTh9'"),
        ("tslib:{}:ETTh1", "ETTh1 is not under .*: ETT-small/ETTh1.csv does not exist"),
    ],
)
def test_a_wrong_source_gets_a_sentence(tmp_path: Path, spec: str, sentence: str) -> None:
    with pytest.raises(HrxError, match=sentence):
        open_source(spec.format(tmp_path))


@pytest.mark.parametrize(("name", "header_encoding"), [("ETTh1", "ascii"), ("ETTh2", "ascii"), ("Weather", "latin-1")])
def test_windows_of_the_real_files_are_those_of_the_librarys_loader(
    real_data: Path, name: str, header_encoding: str
) -> None:
    file = real_data / "tslib" / FILES[name]
    if not file.exists():
        pytest.skip(f"needs {FILES[name]} in the folder tslib of HRX_TEST_DATA")
    header = file.open("rb").readline().decode(header_encoding).strip().split(",")
    column = np.loadtxt(file, delimiter=",", skiprows=1, usecols=header.index("OT"), encoding="latin-1")
    assert_windows_of_the_loader(real_data / "tslib", name, column)
