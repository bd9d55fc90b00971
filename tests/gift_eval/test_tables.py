"""CSV and Parquet files: what is inferred from them, and the message where nothing can be."""

import importlib.util
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hrx.errors import HrxError
from hrx.gift_eval import Dataset, UnusableSeries, cut, open_source

Write = Callable[..., str]
DAYS = [f"2024-01-{day:02}" for day in range(1, 32)]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """write(line, …): a CSV of these lines as a source, with a `name`, an `encoding` and `options`."""

    def written(*lines: str, name: str = "t.csv", encoding: str = "utf-8", options: str = "") -> str:
        (tmp_path / name).write_bytes("\n".join([*lines, ""]).encode(encoding))
        return f"csv:{tmp_path / name}{options}"

    return written


def opened(source: str) -> Dataset:
    (dataset,) = open_source(source)
    return dataset


def stored(dataset: Dataset) -> dict[str, list[float]]:
    """Every series with its gaps, by name."""
    rows = [dataset.row(index) for index in range(dataset.count)]
    return {row.name: row.values.tolist() for row in rows}


def refused(source: str) -> str:
    with pytest.raises(HrxError) as error:
        open_source(source)
    return str(error.value)


def dated(values: list[object], days: list[str] = DAYS) -> list[str]:
    return [f"{day},{value}" for day, value in zip(days, values, strict=False)]


def test_a_wide_table_is_one_item_whose_columns_are_its_variates(write: Write) -> None:
    dataset = opened(write("date,a,b", *(f"{day},{i},{i * i}" for i, day in enumerate(DAYS))))
    assert (dataset.name, dataset.frequency, dataset.season, dataset.count, dataset.items) == ("t/D", "D", 7, 2, 1)
    assert stored(dataset) == {"a": list(range(31)), "b": [i * i for i in range(31)]}
    item = dataset.read_item(0)
    assert (item.names, item.values.tolist()) == (("a", "b"), [list(range(31)), [i * i for i in range(31)]])
    together = "every column of numbers is a series of its own; target=, past= and future= read them together"
    assert dataset.note == f"wide: dates in 'date', values in 'a', 'b'; {together}; frequency D, inferred"


def test_a_long_table_has_a_series_for_every_name_in_the_order_of_the_file(write: Write) -> None:
    rows = [f"{day},{shop},{i + 100 * (shop == '007')}" for i, day in enumerate(DAYS[:5]) for shop in ("north", "007")]
    dataset = opened(write("day,shop,units", *rows))
    assert stored(dataset) == {"north": [0, 1, 2, 3, 4], "007": [100, 101, 102, 103, 104]}
    assert (dataset.count, dataset.items, dataset.variates) == (2, 2, 1)
    assert "long: dates in 'day', series named by 'shop', values in 'units'" in dataset.note


@pytest.mark.parametrize(("options", "season"), [("?season=48", 48), ("?season=1", 1), ("?frequency=D", 7), ("", 7)])
def test_the_season_is_the_one_given_else_that_of_the_frequency(write: Write, options: str, season: int) -> None:
    dataset = opened(write("date,a", *dated(list(range(31))), options=options))
    assert dataset.season == dataset.read(0).season == dataset.read_item(0).season == season
    assert ("season 48, as given" in dataset.note) == (season == 48)


def test_options_choose_date_names_values_and_frequency(write: Write) -> None:
    rows = [f"{day},2020-01-0{1 + i % 2},{i % 2},x,{i},{-i}" for i, day in enumerate(DAYS)]
    source = write("made,sent,kind,who,a,b", *rows, options="?date=made&id=kind,who&value=b,a&frequency=2D")
    dataset = opened(source)
    assert (dataset.frequency, dataset.variates, dataset.items) == ("2D", 2, 2)
    assert stored(dataset)["0/x[b]"] == [-i for i in range(0, 31, 2)]
    assert stored(dataset)["1/x[a]"] == list(range(1, 31, 2))
    assert dataset.read_item(1).item == "1/x"
    assert dataset.note.endswith("frequency 2D, as given")


def test_a_file_and_columns_with_odd_characters_in_their_names_are_reached(write: Write) -> None:
    rows = [f"{day};{i}" for i, day in enumerate(DAYS)]
    source = write("the day;a,b & c=100%", *rows, name="what? no&yes.csv", options="?value=a%2Cb %26 c%3D100%25")
    assert stored(opened(source)) == {"a,b & c=100%": list(range(31))}
    assert stored(opened(source.removesuffix("?value=a%2Cb %26 c%3D100%25")))


def test_a_dataset_of_a_table_can_be_sent_to_another_process_and_its_windows_cut(write: Write) -> None:
    days = pd.date_range("2020-01-01", periods=400, freq="D").strftime("%Y-%m-%d")
    dataset = opened(write("date,a,b", *(f"{day},{i % 17},{i % 5}" for i, day in enumerate(days))))
    again = pickle.loads(pickle.dumps(dataset))
    assert again.read(1).fingerprint == dataset.read(1).fingerprint
    assert cut(again.read(0), 96, 24, 4, 0).x.shape == (4, 96)
    assert cut(again.read_item(0), 96, 24, 4, 0).x.shape == (4, 96, 2)


@pytest.mark.parametrize(
    ("alias", "expected"),
    [
        ("YS", "A"), ("QS", "Q"), ("MS", "M"), ("2MS", "2M"), ("W-WED", "W"), ("D", "D"), ("3D", "3D"), ("B", "B"),
        ("h", "H"), ("6h", "6H"), ("15min", "15T"), ("10s", "10S"), ("BMS", "M"), ("BME", "M"), ("ME", "M"),
        ("28D", "4W"), ("30D", "30D"),
    ],
)  # fmt: skip
def test_the_frequency_is_that_of_the_dates(write: Write, alias: str, expected: str) -> None:
    days = pd.date_range("2019-02-05 00:00", periods=40, freq=alias)
    dataset = opened(write("date,v", *(f"{day},{i}" for i, day in enumerate(days))))
    assert dataset.frequency == expected
    assert stored(dataset) == {"v": list(range(40))}


@settings(max_examples=40, deadline=None)
@given(
    alias=st.sampled_from(["MS", "QS", "W-TUE", "D", "B", "h", "15min", "20s"]),
    present=st.lists(st.booleans(), min_size=40, max_size=60),
    random=st.randoms(use_true_random=False),
)
def test_rows_in_any_order_with_gaps_land_on_the_steps_of_their_dates(
    tmp_path_factory: pytest.TempPathFactory, alias: str, present: list[bool], random: object
) -> None:
    # The first forty are there, so that the frequency shows, and so is the last.
    present = [*[True] * 40, *present, True]
    days = pd.date_range("2021-03-02", periods=len(present), freq=alias)
    rows = [f"{day},{i}" for i, (day, here) in enumerate(zip(days, present, strict=True)) if here]
    random.shuffle(rows)  # type: ignore[attr-defined]
    path = tmp_path_factory.mktemp("t") / "t.csv"
    path.write_text("\n".join(["date,v", *rows]))
    dataset = opened(f"csv:{path}")
    expected = [float(i) if here else np.nan for i, here in enumerate(present)]
    assert np.array_equal(dataset.row(0).values, expected, equal_nan=True)
    empty = present.count(False)
    assert (f"{empty} step" in dataset.note) == (empty > 0)
    assert dataset.read(0).missing == empty


def test_rows_out_of_order_are_sorted_with_a_note(write: Write) -> None:
    lines = dated(list(range(10)))
    assert "have been sorted" not in opened(write("date,v", *lines)).note
    dataset = opened(write("date,v", *reversed(lines)))
    assert stored(dataset) == {"v": list(range(10))}
    assert "rows were not in the order of time and have been sorted" in dataset.note


@pytest.mark.parametrize(
    ("dates", "frequency"),
    [
        (["2024-01-01T00:00:00Z", "2024-01-01T01:00:00Z", "2024-01-01T02:00:00Z"], "H"),
        (["2024/1/1", "2024/1/2", "2024/1/3"], "D"),
        (["20240101", "20240102", "20240103"], "D"),
        (["13/01/2024", "14/01/2024", "15/01/2024"], "D"),
        (["1/13/24 11:00 PM", "1/14/24 12:00 AM", "1/14/24 1:00 AM"], "H"),
        (["1.2.2024", "2.2.2024", "3.2.2024"], "D"),
        (["30 Jan 2024", "31 January 2024", "1 Feb 2024"], "D"),
        (["Jan 30, 2024", "Jan 31, 2024", "Feb 1, 2024"], "D"),
        (["Jan-24", "Feb-24", "Mar-24"], "M"),
        (["2024-01", "2024-02", "2024-03"], "M"),
        (["2023Q4", "2024Q1", "2024Q2"], "Q"),
        (["Q4 2023", "Q1 2024", "Q2 2024"], "Q"),
        (["2020-W53", "2021-W01", "2021-W02"], "W"),
        (["1999", "2000", "2001"], "A"),
        (["1704067200", "1704070800", "1704074400"], "H"),
        (["1704067200000", "1704070800000", "1704074400000"], "H"),
    ],
)
def test_dates_are_read_as_people_write_them(write: Write, dates: list[str], frequency: str) -> None:
    dataset = opened(write("date;v", *(f"{day};{i}" for i, day in enumerate(dates))))
    assert (dataset.frequency, stored(dataset)) == (frequency, {"v": [0, 1, 2]})


def test_times_whose_offsets_differ_are_put_on_one_clock_and_dates_keep_their_day(write: Write) -> None:
    clocks = ["2024-10-27 01:00+02:00", "2024-10-27 02:00+02:00", "2024-10-27 02:00+01:00", "2024-10-27 03:00+01:00"]
    dataset = opened(write("time,v", *(f"{clock},{i}" for i, clock in enumerate(clocks))))
    assert (dataset.frequency, stored(dataset)) == ("H", {"v": [0, 1, 2, 3]})
    assert "times with 2 offsets taken in UTC" in dataset.note
    days = ["2024-10-26 00:00:00+02:00", "2024-10-27 00:00:00+02:00", "2024-10-28 00:00:00+01:00"]
    dataset = opened(write("time,v", *(f"{day},{i}" for i, day in enumerate(days))))
    assert (dataset.frequency, stored(dataset)) == ("D", {"v": [0, 1, 2]})


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_times_of_one_hour_of_the_day_keep_their_day_when_the_clocks_change(tmp_path: Path, kind: str) -> None:
    days = pd.date_range("2024-03-29 06:00", periods=5, freq="D", tz="Europe/Berlin")
    frame = pd.DataFrame({"day": days, "v": range(5)})
    if kind == "parquet":
        pytest.importorskip("pyarrow")
        frame.to_parquet(tmp_path / "t.parquet")
    else:
        frame.to_csv(tmp_path / "t.csv", index=False)
    dataset = opened(f"{kind}:{tmp_path / 't'}.{kind}")
    assert (dataset.frequency, stored(dataset)) == ("D", {"v": list(range(5))})


@pytest.mark.parametrize(
    ("cells", "expected", "note"),
    [
        (["1", "2.5", "-3e2"], [1, 2.5, -300], ""),
        (["1,234.5", "12", "1,000,000"], [1234.5, 12, 1e6], "thousands separators understood"),
        (["1.234,5", "12", "1.000.000"], [1234.5, 12, 1e6], "decimal commas understood"),
        (["0,125", "1,250", "2"], [0.125, 1.25, 2], "decimal commas understood"),
        (["1 234", "1'234'567", "12"], [1234, 1234567, 12], ""),
        (["", "NA", "5"], [np.nan, np.nan, 5], ""),
        (["#N/A", "-", "5"], [np.nan, np.nan, 5], ""),
    ],
)
def test_numbers_are_read_as_spreadsheets_write_them(
    write: Write, cells: list[str], expected: list[float], note: str
) -> None:
    dataset = opened(write("date;v", *(f"{day};{cell}" for day, cell in zip(DAYS, cells, strict=False))))
    assert np.array_equal(dataset.row(0).values, expected, equal_nan=True)
    assert note in dataset.note
    assert "separated by semicolon" in dataset.note


def test_the_decimal_sign_of_a_file_is_one_for_all_its_columns(write: Write) -> None:
    dataset = opened(write("date;a;b", "2024-01-01;1,5;1.234", "2024-01-02;2,5;2.345", "2024-01-03;3;7"))
    assert stored(dataset) == {"a": [1.5, 2.5, 3], "b": [1234, 2345, 7]}


@pytest.mark.parametrize(("sign", "expected"), [(".", [1234, 2345]), (",", [1.234, 2.345])])
def test_an_ambiguous_comma_is_refused_without_the_option(write: Write, sign: str, expected: list[float]) -> None:
    lines = ("date;v", "2024-01-01;1,234", "2024-01-02;2,345")
    assert re.search(r"comma in '1,234' is: 1234 or 1\.234\? Add decimal=", refused(write(*lines)))
    assert stored(opened(write(*lines, options=f"?decimal={sign}"))) == {"v": expected}


def test_an_ambiguous_order_of_day_and_month_is_refused_without_the_option(write: Write) -> None:
    lines = ["date,v", *(f"0{i}/02/2024,{i}" for i in range(1, 6))]
    assert re.search(
        r"t\.csv, row 2, column 'date': '01/02/2024' may have the day or the month", refused(write(*lines))
    )
    assert opened(write(*lines, options="?dayfirst=yes")).frequency == "D"
    assert opened(write(*lines, options="?dayfirst=no")).frequency == "M"
    both = refused(write("date,v", "13/01/2024,1", "01/14/2024,2"))
    assert "row 2" in both
    assert "both orders" in both


@pytest.mark.parametrize(
    ("encoding", "name", "note"),
    [
        ("utf-8-sig", "Köln", ""),
        ("cp1252", "Köln in €", "read as Windows-1252"),
        ("latin-1", "Köln \x81", "read as Latin-1"),  # Windows-1252 does not use this byte
        ("utf-16", "Köln", "read as UTF-16"),
    ],
)
def test_encodings_of_spreadsheets_are_read_with_a_note(write: Write, encoding: str, name: str, note: str) -> None:
    dataset = opened(write(f"date,{name}", *dated([1, 2, 3]), encoding=encoding))
    assert list(stored(dataset)) == [name]
    assert note in dataset.note


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([""], "t.csv is empty"),
        (["date,v"], "has a header and no rows"),
        (["date", "2024-01-01"], "one column, 'date'; .*comma, semicolon, tab"),
        (["2024-01-01,1", "2024-01-02,2"], "has no header: its first row holds a date. Add"),
        (["shop,2024-01-01,2024-01-02", "a,1,2"], "dates across the first row. Transpose"),
        (["Sales of 2024", "date,v,w", "2024-01-01,1,2", "2024-01-02,1,2"], "row 1 has 1 cells, most rows have 3"),
        (["date,v,v", "2024-01-01,1,2"], "2 columns called 'v'"),
        (["date,v", "2024-01-01,1", "2024-01-02,1,234"], "row 3 has 3 cells, the header 2. .*quotation marks"),
        (["date,v", "2024-01-01,1", '2024-01-02,"1'], "unclosed quotation mark"),
        (["a,b", "1,2", "3,4"], "no column of dates; it has 'a', 'b'. .*date=NAME"),
        (["x,y,v", "2024-01-01,2024-01-01,1"], "several columns that may hold the dates: 'x', 'y'. .*date=x"),
        (["date,v", "2024-01-01,1", "2024-13-02,2", "2024-01-03,2"], "row 3, column 'date': '2024-13-02' is not a da"),
        (["date,v", "2024-01-01,1", ",2", "2024-01-03,2"], "row 3, column 'date': there is no date"),
        (["date,v", "45292,1", "45293,2"], "row 2, column 'date': '45292' looks like a spreadsheet's day number"),
        (["date,v", "soon,1", "later,2"], "row 2, column 'date': 'soon' is not a date. .*2 cells.*Write dates like"),
        (["date,v", "2024-01-01,1", "", "2024-01-02,two", "2024-01-03,3"], "row 4, column 'v': 'two' is not a number"),
        (["date,v", "2024-01-01,12%", "2024-01-02,3", "2024-01-03,4"], "row 2, column 'v': '12%' is not a number"),
        (["date;v", "2024-01-01;1,5", "2024-01-02;1.5", "2024-01-03;2"], "row 3, column 'v': '1.5' is not a number"),
        (["date;v", "2024-01-01;1,5", "2024-01-02;1,234.5"], "in two formats: '1,234.5' .* '1,5'"),
        (["date,v", "2024-01-01,1", "2024-01-02,2", "2024-01-01,3"], "rows 2 and 4, column 'date': .* 2024-01-01.*id="),
        (["date,id,v", "2024-01-01,a,1", "2024-01-01,a,2"], "rows 2 and 3, .*two rows of 'a' have the date 2024-01-01"),
        (["time,v", "2024-10-27 02:00,1", "2024-10-27 02:00,2"], "if the clock went back then, write times in UTC"),
        (["date,v", "2024-01-01,1"], "one date per series, .*frequency=D"),
        (["date,v", "2024-01-01,", "2024-01-02,"], "no column of numbers; beside the date it has 'v'"),
        (["date,v,w", "2024-01-01,x,", "2024-01-02,y,"], "no column of numbers"),
        (["time,v", "2024-01-01 01:00,1", "2024-01-01 02:00Z,1"], "row 2, .*no offset, others have 'Z'"),
        (["date,a,b,v", "2024-01-01,x,y,1", "2024-01-01,x,z,1"], "several columns may name .*: 'a', 'b'. .*id=a,b"),
        (["date,id,v,w", "2024-01-01,x,1,2", "2024-01-01,y,1,2"], "several columns of numbers: 'v', 'w'. .*value=v"),
        (["date,id,v", "2024-01-01,x,1", "2024-01-01,,1"], "row 3, column 'id': the series has no name"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_file_row_column_value_and_the_next_step(
    write: Write, lines: list[str], expected: str
) -> None:
    assert re.search(expected, refused(write(*lines)))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("?vlue=v", "Unknown option 'vlue'. Did you mean 'value'"),
        ("?value", "option value has no value"),
        ("?value=v&value=v", "given twice"),
        ("?value=u", "t.csv: Unknown column 'u'"),
        ("?frequency=often", "Unknown frequency 'often'"),
        ("?dayfirst=maybe", "dayfirst is 'maybe'"),
        ("?season=0", "season is '0'; write the number of values per season, as in season=24; 1 for none."),
        ("?season=week", "season is 'week'"),
        ("?decimal=;", "decimal is ';'"),
        ("?value=date", "'date' cannot be a value and also the date"),
        ("?frequency=W", "row 3, .*2024-01-02 is 1 day after .* does not fit W, the frequency given"),
        ("?frequency=M", "row 3, .*does not fit M"),
    ],
)
def test_options_that_are_not_valid_are_named(write: Write, options: str, expected: str) -> None:
    assert re.search(expected, refused(write("date,v", *dated([1, 2, 3]), options=options)))


def test_a_date_between_two_steps_is_named_with_its_row(write: Write) -> None:
    times = [f"2024-01-01 {hour:02}:00" for hour in range(12)]
    times[7] = "2024-01-01 07:17"
    message = refused(write("time,v", *(f"{time},{i}" for i, time in enumerate(times))))
    assert re.search(r"row 9, column 'time': 2024-01-01 07:17 is 77 minutes after .*\(row 8\)", message)
    assert "does not fit H, the frequency of most rows" in message
    assert "1 hour (9 times)" in message


def test_mixed_frequencies_are_refused_or_cost_only_the_series_that_has_them(write: Write) -> None:
    hourly = [f"2024-01-01 {hour:02}:00" for hour in range(24)]
    daily = [f"2024-01-{day:02} 00:00" for day in range(2, 20)]
    message = refused(write("time,v", *(f"{time},1" for time in hourly + daily)))
    assert "no series that can be used: its 42 dates fill less than half of the 433 steps of frequency H" in message
    assert "1 hour (24 times), 1 day (17 times)" in message
    dataset = opened(
        write("time,id,v", *(f"{t},good,{i}" for i, t in enumerate(hourly)), *(f"{t},bad,1" for t in daily))
    )
    assert dataset.read(0).values.tolist() == list(range(24))
    with pytest.raises(UnusableSeries, match=r"t/H series bad: its 18 dates fill less than half"):
        dataset.read(1)


def test_series_without_values_too_short_or_constant_are_exclusions_and_the_others_are_read(write: Write) -> None:
    days = pd.date_range("2020-01-01", periods=200, freq="D").strftime("%Y-%m-%d")
    dataset = opened(write("date,good,empty,flat", *(f"{day},{i % 7},,5" for i, day in enumerate(days))))
    assert cut(dataset.read(0), 96, 24, 4, 0).x.shape == (4, 96)
    with pytest.raises(UnusableSeries, match=r"t/D series empty: all 200 values are missing"):
        dataset.read(1)
    with pytest.raises(UnusableSeries, match=r"t/D series flat: .*constant before its test region"):
        cut(dataset.read(2), 96, 24, 4, 0)
    with pytest.raises(UnusableSeries, match=r"t/D series good: too short: 200 values.*512x96"):
        cut(dataset.read(0), 512, 96, 4, 0)


def test_columns_that_are_not_series_are_listed_as_not_used(write: Write) -> None:
    rows = [f"{i},{day},{i},note {i}" for i, day in enumerate(DAYS)]
    dataset = opened(write(",date,v,comment", *rows))
    assert list(stored(dataset)) == ["v"]
    assert "not used: 'column 1', 'comment'" in dataset.note


@pytest.mark.parametrize(("item", "time", "value"), [("unique_id", "ds", "y"), ("item_id", "timestamp", "target")])
@pytest.mark.parametrize("items", [(1, 2), (7,)])
def test_the_column_names_of_forecasting_libraries_are_known(
    tmp_path: Path, item: str, time: str, value: str, items: tuple[int, ...]
) -> None:
    """Numeric ids, a second column of dates and other columns of numbers do not confuse the layout."""
    frame = pd.DataFrame(
        [(i, day, "2020-01-01", 0.5, 10 * i + d) for i in items for d, day in enumerate(DAYS[:5])],
        columns=[item, time, "issued", "price", value],
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    message = refused(f"csv:{tmp_path / 't.csv'}")
    assert f"no role is given for 'price' beside the target '{value}'. Name what the forecast may read in " in message
    dataset = opened(f"csv:{tmp_path / 't.csv'}?unused=ignore")
    assert stored(dataset) == {str(i): [10 * i + d for d in range(5)] for i in items}
    assert "not used: 'issued', 'price'" in dataset.note
    assert list(stored(opened(f"csv:{tmp_path / 't.csv'}?value=price"))) == [str(i) for i in items]


def test_a_stored_index_is_not_a_series(tmp_path: Path) -> None:
    frame = pd.DataFrame({"date": DAYS, "v": range(31)}).sample(frac=1, random_state=0)
    frame.to_csv(tmp_path / "t.csv")
    frame.rename_axis("Unnamed: 0").to_csv(tmp_path / "u.csv")
    sources = [f"csv:{tmp_path / 't.csv'}", f"csv:{tmp_path / 'u.csv'}"]
    if importlib.util.find_spec("pyarrow"):
        frame.to_parquet(tmp_path / "t.parquet")
        frame.assign(__index_level_0__=frame.index).reset_index(drop=True).to_parquet(tmp_path / "u.parquet")
        sources += [f"parquet:{tmp_path / 't.parquet'}", f"parquet:{tmp_path / 'u.parquet'}"]
    for source in sources:
        assert stored(opened(source)) == {"v": list(range(31))}, source
    frame.set_index(pd.to_datetime(frame.pop("date"))).rename_axis(None).to_csv(tmp_path / "t.csv")
    assert stored(opened(sources[0])) == {"v": list(range(31))}


def test_numbers_are_never_taken_for_dates(write: Write) -> None:
    values = ["2001.5", "1999.12", "-2001.01", "2024.1"]
    dataset = opened(write("date,v", *dated(values)))
    assert stored(dataset) == {"v": [2001.5, 1999.12, -2001.01, 2024.1]}
    assert re.search("row 3, column 'date': '2021-W53' is not a", refused(write("date,v", "2021-W52,1", "2021-W53,2")))
    assert re.search("row 2, column 'd': '2024011' is not a", refused(write("d,v", "2024011,1", options="?date=d")))


def test_files_that_are_something_else_say_what_they_are(tmp_path: Path) -> None:
    for content, expected in [
        (b"PK\x03\x04...", "is a workbook"),
        (b"PAR1...", "Open it as parquet:"),
        (b"a\0b", "not text"),
    ]:
        (tmp_path / "t.csv").write_bytes(content)
        assert expected in refused(f"csv:{tmp_path / 't.csv'}")
    (tmp_path / "t.parquet").write_text("date,v\n")
    assert "is not a Parquet file" in refused(f"parquet:{tmp_path / 't.parquet'}")
    assert "is a directory" in refused(f"csv:{tmp_path}")
    assert "does not exist" in refused(f"csv:{tmp_path / 'absent.csv'}")
    assert "names no file" in refused("csv:")


def test_parquet_is_read_with_its_types_its_index_and_its_time_zone(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    days = pd.date_range("2024-01-01", periods=40, freq="h", tz="Europe/Berlin")
    frame = pd.DataFrame({"a": np.arange(40), "b": np.arange(40) / 2}, index=pd.Index(days, name="when"))
    frame.to_parquet(tmp_path / "t.parquet")
    dataset = opened(f"parquet:{tmp_path / 't.parquet'}")
    assert stored(dataset) == {"a": list(range(40)), "b": [i / 2 for i in range(40)]}
    assert (dataset.name, "times taken in UTC" in dataset.note) == ("t/H", True)
    long = pd.DataFrame({"day": DAYS[:3] * 2, "id": ["x"] * 3 + ["y"] * 3, "v": ["1", "2", "3", "4", "five", "6"]})
    long.to_parquet(tmp_path / "t.parquet")
    assert "t.parquet, row 5, column 'v': 'five' is not a number" in refused(f"parquet:{tmp_path / 't.parquet'}")
    pd.DataFrame({"day": DAYS[:2], "v": [[1.0, 2.0], [3.0]]}).to_parquet(tmp_path / "t.parquet")
    assert "t.parquet: column 'v' holds lists" in refused(f"parquet:{tmp_path / 't.parquet'}")
    (tmp_path / "t.parquet").write_bytes((tmp_path / "t.parquet").read_bytes()[:200])
    assert "cannot be read as Parquet" in refused(f"parquet:{tmp_path / 't.parquet'}")


def test_ids_of_a_parquet_file_may_be_bytes_of_any_kind(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed (pip install 'hrx[gift-eval]')")
    days = pd.to_datetime(["2024-01-01", "2024-01-02", "2024-01-03"])
    names = [b"\xff\xfe", "Köln".encode(), b"\x00a"]
    frame = pd.DataFrame({"date": np.tile(days, 3), "id": np.repeat(names, 3), "v": np.arange(9.0)})
    frame["id"] = frame["id"].astype(object)
    frame.to_parquet(tmp_path / "t.parquet")
    found = stored(opened(f"parquet:{tmp_path / 't.parquet'}"))
    assert {name: list(values) for name, values in found.items()} == {
        r"\xff\xfe": [0, 1, 2], "Köln": [3, 4, 5], "\x00a": [6, 7, 8],
    }  # fmt: skip


def test_a_small_file_of_many_rows_is_refused_before_it_is_read(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed (pip install 'hrx[gift-eval]')")
    pyarrow = pytest.importorskip("pyarrow")
    rows = 2**22 + 1
    zeros = np.zeros(rows, dtype=np.int8)
    parquet.write_table(pyarrow.table({"date": zeros, "v": zeros}), tmp_path / "t.parquet")
    assert (tmp_path / "t.parquet").stat().st_size < 100_000
    assert f"has {rows} rows and 2 columns; a table has at most 4194304 rows" in refused(
        f"parquet:{tmp_path / 't.parquet'}"
    )
    (tmp_path / "t.csv").write_bytes(b"date,v\n" + b"\n" * rows)
    assert "a table has at most 4194304 rows" in refused(f"csv:{tmp_path / 't.csv'}")


def test_a_csv_needs_no_pyarrow(write: Write) -> None:
    script = (
        "import sys; sys.modules['pyarrow'] = None; from hrx.gift_eval import open_source; "
        f"print(open_source({write('date,v', *dated([1, 2, 3]))!r})[0].read(0).values.tolist())"
    )
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[1.0, 2.0, 3.0]"


@settings(max_examples=60, deadline=None)
@given(
    cells=st.lists(
        st.one_of(
            st.sampled_from(["", "date", "v", "id", *DAYS[:3], "1/2/24", "1,5", "1.5", "-", "x", '"', ";", "\r", "Z"]),
            st.text(max_size=3),
        ),
        max_size=24,
    ),
    width=st.integers(1, 4),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "latin-1"]),
)
def test_any_file_gives_a_dataset_or_a_message(
    tmp_path_factory: pytest.TempPathFactory, cells: list[str], width: int, encoding: str
) -> None:
    path = tmp_path_factory.mktemp("t") / "t.csv"
    lines = [",".join(cells[first : first + width]) for first in range(0, len(cells), width)]
    path.write_bytes("\n".join(["date,v,id,x", *lines]).encode(encoding, "replace"))
    read, refused, excluded = [], [], []
    try:
        (dataset,) = open_source(f"csv:{path}")
        for index in range(dataset.count):
            try:
                read.append(dataset.read(index).values)
            except UnusableSeries as error:
                excluded.append(str(error))
    except HrxError as error:
        refused.append(str(error))
    assert read or refused or excluded
    assert all("t.csv" in sentence for sentence in refused)
    assert all(excluded)
    assert all(len(values) and np.isfinite(values).all() for values in read)
