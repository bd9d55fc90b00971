"""Rebuild the sample's CSV files from the PyPI wheels that carry the series.

    python -m venv .venv-sample && .venv-sample/bin/pip install vega_datasets==0.9.0 statsmodels==0.15.0
    .venv-sample/bin/python tests/gift_eval/build_sample.py

The wheels' own CSV files are read as text, so the result does not depend on any library's parsing.
"""

import csv
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

SAMPLE = Path(__file__).resolve().parents[2] / "gift_eval" / "sample"
HOUR = timedelta(hours=1)


def main() -> None:
    """Write the five files of the sample."""
    _write("sf_temps", ("hour", "temp"), _hourly("sf-temps.csv", "%Y/%m/%d %H:%M:%S"))
    _write("seattle_temps", ("hour", "temp"), _hourly("seattle-temps.csv", "%Y/%m/%d %H:%M"))
    _write("seattle_weather", ("date", "precipitation", "temp_max", "temp_min", "wind"), _daily())
    _write("co2", ("date", "co2"), _weekly())
    _write("elnino", ("month", "temperature"), _monthly())


def _hourly(name: str, layout: str) -> list[Sequence[str]]:
    """Hours since the first, on a grid without holes: an hour that the source lacks has an empty cell."""
    cells = {datetime.strptime(r["date"], layout): r["temp"] for r in _read("vega_datasets", f"_data/{name}")}
    first, last = min(cells), max(cells)
    hours = range((last - first) // HOUR + 1)
    return [(str(hour), _number(cells.get(first + hour * HOUR, ""))) for hour in hours]


def _daily() -> list[Sequence[str]]:
    records = _read("vega_datasets", "_data/seattle-weather.csv")
    columns = ("precipitation", "temp_max", "temp_min", "wind")
    rows = [(r["date"].replace("/", "-"), *(_number(r[column]) for column in columns)) for r in records]
    return _on_grid(rows, timedelta(days=1))


def _weekly() -> list[Sequence[str]]:
    records = _read("statsmodels.datasets.co2", "co2.csv")
    rows = [(f"{r['date'][:4]}-{r['date'][4:6]}-{r['date'][6:]}", _number(r["co2"])) for r in records]
    return _on_grid(rows, timedelta(weeks=1))


def _monthly() -> list[Sequence[str]]:
    """61 years of 12 months, one after the other."""
    rows: list[Sequence[str]] = []
    for record in _read("statsmodels.datasets.elnino", "elnino.csv"):
        year, *months = record.values()
        rows += [(f"{year}-{month:02}", _number(cell)) for month, cell in enumerate(months, start=1)]
    return rows


def _on_grid(rows: Sequence[Sequence[str]], step: timedelta) -> list[Sequence[str]]:
    """The rows, after making sure that each date is one step after the one before."""
    dates = [datetime.fromisoformat(row[0]) for row in rows]
    if any(later - earlier != step for earlier, later in pairwise(dates)):
        raise SystemExit("The wheel's dates are no longer regular: put the missing ones in as empty cells.")
    return list(rows)


def _number(cell: str) -> str:
    """The shortest spelling of the same number; an empty cell stays empty."""
    return repr(float(cell)) if cell.strip() else ""


def _read(package: str, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(files(package).joinpath(name).read_text(encoding="utf-8").splitlines()))


def _write(name: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    with (SAMPLE / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])


if __name__ == "__main__":
    main()
