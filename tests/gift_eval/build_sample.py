r"""Rebuild the sample's CSV files from the PyPI wheels that carry the series.

    python -m venv .venv-sample && .venv-sample/bin/pip install vega_datasets==0.9.0 statsmodels==0.15.0 \
        arch==8.0.0 pvlib==0.16.1
    .venv-sample/bin/python tests/gift_eval/build_sample.py

The wheels' own files are read as text, so the result does not depend on any library's parsing.
"""

import csv
import gzip
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

SAMPLE = Path(__file__).resolve().parents[2] / "gift_eval" / "sample"
HOUR = timedelta(hours=1)


def main() -> None:
    """Write the files of the sample."""
    _write("sf_temps", ("hour", "temp"), _hourly("sf-temps.csv", "%Y/%m/%d %H:%M:%S"))
    _write("seattle_temps", ("hour", "temp"), _hourly("seattle-temps.csv", "%Y/%m/%d %H:%M"))
    _write("seattle_weather", ("date", "precipitation", "temp_max", "temp_min", "wind"), _daily())
    _write("co2", ("date", "co2"), _weekly())
    _write("elnino", ("month", "temperature"), _monthly())
    _write("sunspots", ("month", "sunspots"), _sunspots())
    _write("core_cpi", ("month", "index"), _core_cpi())
    _write("wti", ("date", "price"), _business_days())
    _write("irradiance", ("hour", "ghi"), _solar())


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


def _sunspots() -> list[Sequence[str]]:
    """The complete years of a table of twelve months a line."""
    lines = [line.split() for line in _lines("statsmodels.datasets.sunspots", "src/sunspots_monthly.dat")]
    years = [cells for cells in lines if len(cells) == 13 and cells[0].isdigit()]
    if [int(cells[0]) for cells in years] != list(range(1749, 2009)):
        raise SystemExit("The wheel's years are no longer 1749 to 2008.")
    return [
        (f"{year}-{month:02}", _number(cell)) for year, *cells in years for month, cell in enumerate(cells, start=1)
    ]


def _core_cpi() -> list[Sequence[str]]:
    rows = [
        (datetime.strptime(r["Date"], "%m/%d/%Y"), r["CPILFESL"])
        for r in _read("arch.data.core_cpi", "core-cpi.csv.gz")
    ]
    if any(
        (later.year - earlier.year) * 12 + later.month - earlier.month != 1
        for (earlier, _), (later, _) in pairwise(rows)
    ):
        raise SystemExit("The wheel's months are no longer regular: put the missing ones in as empty cells.")
    return [(f"{month:%Y-%m}", _number(cell)) for month, cell in rows]


def _business_days() -> list[Sequence[str]]:
    """Monday to Friday; a day without a price has an empty cell."""
    records = _read("arch.data.wti", "wti.csv.gz")
    cells = {datetime.strptime(r["Date"], "%m/%d/%Y"): r["DCOILWTICO"].strip(" .") for r in records}
    first, last = min(cells), max(cells)
    days = (first + timedelta(days=day) for day in range((last - first).days + 1))
    return [(f"{day:%Y-%m-%d}", _number(cells.get(day, ""))) for day in days if day.weekday() < 5]


def _solar() -> list[Sequence[str]]:
    """The 8,760 hours of a typical year, each named by its number."""
    lines = _lines("pvlib", "data/723170TYA.CSV")[1:]
    records = list(csv.DictReader(lines))
    if len(records) != 8760:
        raise SystemExit("The wheel's typical year no longer has 8,760 hours.")
    return [(str(hour), _number(r["GHI (W/m^2)"])) for hour, r in enumerate(records)]


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
    return list(csv.DictReader(_lines(package, name)))


def _lines(package: str, name: str) -> list[str]:
    content = files(package).joinpath(name).read_bytes()
    return (gzip.decompress(content) if name.endswith(".gz") else content).decode("utf-8").splitlines()


def _write(name: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    with (SAMPLE / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])


if __name__ == "__main__":
    main()
