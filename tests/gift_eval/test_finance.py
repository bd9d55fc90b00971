"""Finance from a price file: two forms on the grid of the file's trading days."""

import math
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hrx.errors import HrxError
from hrx.gift_eval import UnusableSeries, cut, open_source

# Trading days with a holiday (2024-01-15) between them.
DAYS = ["2024-01-10", "2024-01-11", "2024-01-12", "2024-01-16", "2024-01-17"]
PRICES = {"AAPL": [10.0, 11.0, 12.5, 12.0, 13.0], "BRK-B": [300.0, 301.0, 299.0, 305.0, 310.0]}


def wide(path: Path, **changes: list[object]) -> str:
    pd.DataFrame({"Date": DAYS, **PRICES, **changes}).to_csv(path, index=False)
    return f"finance:{path}"


def long(path: Path) -> str:
    lines = [
        f"{day},{name},1,{price},99" for name, prices in PRICES.items() for day, price in zip(DAYS, prices, strict=True)
    ]
    path.write_text("\n".join(["Date,Ticker,Open,Close,Volume", *lines]))
    return f"finance:{path}"


@pytest.mark.parametrize("write", [wide, long])
def test_prices_become_log_prices_and_log_returns_on_the_trading_days_alone(tmp_path: Path, write: object) -> None:
    price, change = open_source(write(tmp_path / "p.csv"))  # type: ignore[operator]
    assert [(d.name, d.frequency, d.season, d.domain, d.count) for d in (price, change)] == [
        ("finance/log_price", "B", 5, "Finance", 2),
        ("finance/log_return", "B", 5, "Finance", 2),
    ]
    for index, (name, prices) in enumerate(PRICES.items()):
        read = price.read(index)
        assert (read.item, read.missing) == (name, 0)
        assert read.values.tolist() == pytest.approx([math.log(p) for p in prices])
        returns = [math.log(after / before) for before, after in pairwise(prices)]
        assert change.read(index).values.tolist() == pytest.approx(returns)
    assert "frequency B, on the 5 trading days of the file" in price.note


def test_parquet_prices_are_read_too(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    pd.DataFrame(PRICES, index=pd.to_datetime(DAYS)).to_parquet(tmp_path / "p.parquet")
    price, _ = open_source(f"finance:{tmp_path / 'p.parquet'}")
    assert price.read(1).values.tolist() == pytest.approx(np.log(PRICES["BRK-B"]).tolist())


def test_a_company_without_a_complete_history_is_an_exclusion(tmp_path: Path) -> None:
    price, change = open_source(wide(tmp_path / "p.csv", NEW=["", "", 5.0, 6.0, 7.0]))
    for dataset in (price, change):
        assert dataset.read(0).values.size
        with pytest.raises(UnusableSeries, match=r"series NEW: it has no price on 2 of the 5 trading days"):
            dataset.read(2)


def test_a_long_history_is_cut_into_windows(tmp_path: Path) -> None:
    days = pd.bdate_range("2018-01-01", periods=800)
    prices = 50 * np.exp(np.random.default_rng(0).normal(scale=0.01, size=800).cumsum())
    pd.DataFrame({"Date": days, "X": prices}).to_csv(tmp_path / "p.csv", index=False)
    for dataset in open_source(f"finance:{tmp_path / 'p.csv'}"):
        assert cut(dataset.read(0), 512, 96, 4, 0).x.shape == (4, 512)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"AAPL": [10, 0, 12, 13, 14]}, r"p\.csv, row 3, column 'AAPL': the price is 0, and a price is above zero"),
        ({"AAPL": [10, 11, 12, 13, -1]}, r"p\.csv, row 6, column 'AAPL': the price is -1"),
        ({"Date": [*DAYS[:4], "2024-01-20"]}, r"row 6: 2024-01-20 is a Saturday or Sunday .*1 rows"),
        ({"Date": [f"2024-01-10 1{i}:00" for i in range(5)]}, r"rows 2 and 3: two prices on 2024-01-10"),
        ({"AAPL": ["", 1, 1, 1, 1], "BRK-B": [1, 1, 1, 1, ""]}, r"no company has a price on every one of its 5"),
        ({"Date": ["Ticker", *DAYS[1:]]}, r"row 2, column 'Date': 'Ticker' is not a date"),
    ],
)
def test_an_invalid_price_file_is_refused(tmp_path: Path, changes: dict[str, list[object]], expected: str) -> None:
    with pytest.raises(HrxError) as error:
        open_source(wide(tmp_path / "p.csv", **changes))
    assert re.search(expected, str(error.value))


def test_options_that_do_not_belong_to_prices_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HrxError, match="drop the option frequency"):
        open_source(wide(tmp_path / "p.csv") + "?frequency=D")
    with pytest.raises(HrxError, match="one closing price, but value names 2 columns"):
        open_source(long(tmp_path / "q.csv") + "?value=Open,Close")
