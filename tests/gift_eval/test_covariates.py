"""Column roles, the start of the forecast, gaps, and windows of channels, against frames written out by hand."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hrx.errors import HrxError
from hrx.gift_eval import cut, cut_region, open_source, read_series
from hrx.gift_eval.covariates import CovariateSeries
from hrx.gift_eval.sources import read_covariates
from hrx.gift_eval.tables import Options
from hrx.gift_eval.windows import split, standardise

STEPS, AHEAD = 40, 6
DAYS = pd.date_range("2024-01-01", periods=STEPS + AHEAD, freq="D")
ROLES = Options(target=("load",), past=("visits",), future=("temp", "holiday"), static=("region",))


def one_item(item: str, seed: int) -> pd.DataFrame:
    """STEPS rows with a target and AHEAD rows without: those of the known future."""
    random = np.random.default_rng(seed)
    frame = pd.DataFrame({"item_id": item, "timestamp": DAYS, "load": random.normal(size=len(DAYS))})
    frame["visits"], frame["temp"] = random.normal(size=len(DAYS)), random.normal(size=len(DAYS))
    frame["holiday"], frame["region"] = frame["timestamp"].dt.dayofweek == 6, f"r{seed}"
    frame.loc[STEPS:, ["load", "visits"]] = np.nan
    return frame


@pytest.fixture
def frame() -> pd.DataFrame:
    return pd.concat([one_item("a", 1), one_item("b", 2)], ignore_index=True)


def read(data: object, options: Options = ROLES, horizon: int | None = AHEAD) -> list[CovariateSeries]:
    return read_covariates(data, options, horizon)


def refused(data: object, options: Options = ROLES, horizon: int | None = AHEAD) -> str:
    with pytest.raises(HrxError) as error:
        read(data, options, horizon)
    return str(error.value)


def same(found: object, expected: object) -> None:
    np.testing.assert_array_equal(np.asarray(found, dtype=float), np.asarray(expected, dtype=float))


def test_columns_become_channels_by_their_role_and_the_forecast_starts_after_the_last_target(frame):
    before = frame.copy()
    for one, item in zip(read(frame.sample(frac=1, random_state=0)), ("a", "b"), strict=True):
        rows = frame[frame["item_id"] == item]
        assert (one.item, one.target.shape) == (item, (1, STEPS))
        assert one.names == {
            "target": ("load",),
            "past": ("visits",),
            "future": ("temp", "holiday"),
            "static": ("region",),
        }
        assert one.kinds == {
            "load": "number", "visits": "number", "temp": "number", "holiday": "categorical", "region": "categorical",
        }  # fmt: skip
        assert one.labels == {"holiday": ("False", "True"), "region": ("r1", "r2")}
        window = one.window(10, AHEAD)
        same(window["target"][0, :, 0], rows["load"][STEPS - 10 : STEPS])
        same(window["past"][0, :, 0], rows["visits"][STEPS - 10 : STEPS])
        same(window["future"][0], rows[["temp", "holiday"]][STEPS - 10 :])
        same(window["static"], [[item == "b"]])
        assert one.times.tolist() == DAYS[:STEPS].tolist()
        assert one.after(AHEAD).tolist() == DAYS[STEPS:].tolist()
    pd.testing.assert_frame_equal(frame, before)


def test_a_file_with_roles_reads_as_its_frame(frame, tmp_path: Path):
    frame.to_csv(tmp_path / "t.csv", index=False)
    roles = "target=load&past=visits&future=temp,holiday&static=region"
    given = {"csv": read(f"{tmp_path / 't.csv'}?{roles}", Options()), "path": read(str(tmp_path / "t.csv"))}
    for kind, found in given.items():
        for one, expected in zip(found, read(frame), strict=True):
            for role, values in expected.window(STEPS, AHEAD).items():
                np.testing.assert_allclose(one.window(STEPS, AHEAD)[role], values, rtol=1e-12, err_msg=kind)
            assert (one.kinds, one.labels) == (expected.kinds, expected.labels)


def test_a_wide_frame_and_one_without_dates_take_roles_too(frame):
    wide = frame[frame["item_id"] == "a"].drop(columns=["item_id"])
    options = ROLES._replace(static=(), unused="ignore")
    for data, times in ((wide.set_index("timestamp"), True), (wide.drop(columns="timestamp"), False)):
        (one,) = read(data, options)
        same(one.window(STEPS, AHEAD)["future"][0], wide[["temp", "holiday"]])
        assert (one.times is not None) is times
    counted = frame.assign(timestamp=frame.groupby("item_id").cumcount() * 5 + 100)
    found = read(counted)
    assert found[1].after(2).tolist() == [100 + 5 * STEPS, 105 + 5 * STEPS]
    same(found[1].window(STEPS, AHEAD)["past"], read(frame)[1].window(STEPS, AHEAD)["past"])


def test_a_column_without_a_role_is_refused_with_the_keywords_or_left_out_on_request(frame):
    missing = ROLES._replace(future=("temp",))
    message = refused(frame, missing)
    assert "no role is given for 'holiday' beside the target 'load'" in message
    assert all(keyword in message for keyword in ("past=", "future=", "static=", "unused='ignore'", "of a frame, drop"))
    (one, _) = read(frame, missing._replace(unused="ignore"))
    assert one.names["future"] == ("temp",)
    assert "not used: 'holiday'" in one.note


def test_covariates_beside_the_one_target_of_a_long_frame_do_not_vanish(frame):
    long = frame.rename(columns={"load": "target"}).drop(columns=["holiday", "region"])
    assert "no role is given for 'visits', 'temp' beside the target 'target'" in refused(long, Options())
    (one, _) = read(long, Options(unused="ignore"), None)
    assert (one.names, one.target.shape) == ({"target": ("target",)}, (1, STEPS))
    assert read_series(long[["item_id", "timestamp", "target"]]).series[0].series.values.size == STEPS


def test_a_wide_frame_without_roles_is_one_series_per_column_and_says_so():
    wide = pd.DataFrame({"load": range(9), "temp": range(9)}, index=DAYS[:9])
    found = read_series(wide).series
    assert [one.series.item for one in found] == ["load", "temp"]
    assert all(
        "every column of numbers is a series of its own; target=, past= and future=" in one.note for one in found
    )
    assert read_series(wide[["load"]]).series[0].note == ""


def test_targets_are_forecast_together_or_each_by_itself():
    wide = pd.DataFrame({"a": range(9), "b": [np.nan, *range(8)], "u": range(1, 10)}, index=DAYS[:9], dtype=float)
    (joint,) = read(wide, Options(target=("b", "a"), past=("u",)), 3)
    assert joint.names["target"] == ("b", "a")
    window = joint.window(4, 3)
    same(window["target"][0], wide[["b", "a"]][-4:])
    same(joint.target, wide[["b", "a"]][1:].T)
    same(joint.series.covariates[0].values, wide["u"][1:])
    assert joint.times.tolist() == DAYS[1:9].tolist()
    each = read(wide, Options(target=("each",), past=("u",)), 3)
    assert [one.names["target"] for one in each] == [("a",), ("b",)]
    same(each[1].window(4, 3)["past"], window["past"])
    with pytest.raises(HrxError, match=r"'b', 'a' are forecast together here.*target='each'"):
        read_series(wide, Options(target=("b", "a"), unused="ignore"))


def test_a_series_that_ends_earlier_starts_its_forecast_earlier_and_says_so():
    values = np.r_[np.arange(8.0), np.nan, np.nan]
    for data in (values, pd.Series(values, index=DAYS[:10]), {"a": list(values)}):
        (one,) = read_series(data).series
        assert one.series.values.tolist() == list(range(8))
        assert "the forecast starts after the last observed value, 2 steps before the end" in one.note
    assert read_series(pd.Series(values, index=DAYS[:10])).series[0].after(1).tolist() == [DAYS[8]]


@pytest.mark.parametrize("dated", [True, False])
def test_future_data_continues_the_table(frame, dated: bool):
    whole = frame if dated else frame[frame["item_id"] == "a"].drop(columns=["item_id", "timestamp"])
    seen = whole[whole["load"].notna()]
    ahead = whole[whole["load"].isna()].drop(columns=["load", "visits", "region"])
    expected = read(whole)
    for one, same_one in zip(read(seen, ROLES._replace(future_data=ahead)), expected, strict=True):
        for role, values in same_one.window(STEPS, AHEAD).items():
            same(one.window(STEPS, AHEAD)[role], values)
    assert "known for 0 of 6 steps after the last target" in refused(seen)


def test_future_data_that_overlaps_must_agree_and_fills_what_the_data_lack(frame, tmp_path: Path):
    ahead = frame.loc[frame["timestamp"] >= DAYS[STEPS - 2], ["item_id", "timestamp", "temp", "holiday"]]
    ahead.to_csv(tmp_path / "f.csv", index=False)
    gaps = frame.assign(temp=frame["temp"].where(frame["timestamp"] < DAYS[STEPS + 2]))
    assert "'temp' is known for 2 of 6 steps after the last target; the first missing one is 2024-02-12" in refused(
        gaps
    )
    (one, _) = read(gaps, ROLES._replace(future_data=str(tmp_path / "f.csv")))
    np.testing.assert_allclose(one.window(9, AHEAD)["future"][0, :, 0], frame["temp"][STEPS - 9 : STEPS + AHEAD])
    message = refused(frame, ROLES._replace(future_data=ahead.assign(temp=9)))
    assert "The frame, series a: 'temp' is " in message
    assert "in the data and 9 in row 0 of future_data, at the same time. Correct one of them." in message


@pytest.mark.parametrize(
    ("change", "options", "sentence"),
    [
        ({}, ROLES._replace(past=("wind",)), "Unknown column 'wind'"),
        ({}, ROLES._replace(past=("temp",)), "'temp' is named in past= and in future="),
        ({}, ROLES._replace(past=("load",)), "'load' is named in target= and in past="),
        ({}, ROLES._replace(target=(), static=()), "several columns of numbers|no role is given for 'region'"),
        ({"visits": DAYS[0]}, ROLES, "column 'visits' holds dates"),
        ({"region": ["x", *["y"] * (2 * len(DAYS) - 1)]}, ROLES, "series a: the static column 'region' is 'x' in"),
        ({}, ROLES._replace(future_data=3), "future_data is a int. Give a DataFrame"),
        ({}, ROLES._replace(future_data=pd.DataFrame({"timestamp": DAYS})), "future_data has no column 'item_id'"),
        ({}, Options(target=("load",), unused="ignore", future_data=pd.DataFrame()), "future_data= holds covariates"),
    ],
)  # fmt: skip
def test_roles_that_cannot_be_are_a_sentence(frame, change, options, sentence):
    with pytest.raises(HrxError, match=sentence):
        read(frame.assign(**change), options)


def test_future_data_of_another_series_or_with_another_column_is_refused(frame):
    ahead = frame.loc[frame["load"].isna(), ["item_id", "timestamp", "temp", "holiday"]]
    other = ahead.replace({"item_id": {"b": "c"}})
    assert "rows of 'c', which the data do not have" in refused(frame, ROLES._replace(future_data=other))
    assert "'wind': not a column of the data" in refused(frame, ROLES._replace(future_data=ahead.assign(wind=1)))
    twice = pd.concat([ahead, ahead])
    assert "two rows of 'a' have the date 2024-02-10" in refused(frame, ROLES._replace(future_data=twice))


def test_an_array_has_no_columns_to_name():
    assert "An array has no columns, so 'load' names nothing" in refused(np.arange(9.0))


def test_nothing_of_a_covariate_is_filled_in_and_the_past_of_a_gap_is_missing(frame):
    holes = frame.assign(
        temp=frame["temp"].where(frame.index % 5 != 3), visits=frame["visits"].where(frame.index % 7 != 2)
    )
    holes = holes.drop(index=[20])
    (one, _) = read(holes)
    rows = holes[holes["item_id"] == "a"].set_index("timestamp").reindex(DAYS)
    same(one.window(STEPS, AHEAD)["future"][0, :, 0], rows["temp"])
    same(one.window(STEPS, AHEAD)["past"][0, :, 0], rows["visits"][:STEPS])
    assert np.flatnonzero(~one.observed[0]).tolist() == [20]


def test_kinds_follow_the_values_over_the_history():
    data = pd.DataFrame({"y": range(12), "flag": [0, 1] * 6, "flat": 3, "text": ["a", "b", None] * 4, "x": range(12)})
    (one,) = read(data, Options(target=("y",), past=("flag", "flat", "text", "x")), 2)
    assert [one.kinds[name] for name in ("flag", "flat", "text", "x")] == ["two-valued"] * 2 + ["categorical", "number"]
    same(one.window(3, 2)["past"][0, :, 2], [0, 1, np.nan])
    empty = read(data.assign(x=np.nan), Options(target=("y",), past=("flag", "flat", "text", "x")), 2)[0]
    assert np.isnan(empty.window(3, 2)["past"][0, :, 3]).all()


def test_windows_over_the_test_region_are_those_of_the_targets_in_raw_units(frame):
    (one, _) = read(frame, horizon=None)
    found, plain = one.windows(8, 3, 4, seed=1), cut(one.series, 8, 3, 4, 1)
    assert found.starts.tolist() == plain.starts.tolist()
    end = split(STEPS, 3)
    scaled = standardise(one.target[0], end)
    np.testing.assert_allclose(found.arrays["target"][:, :, 0], plain.x * scaled.std + scaled.mean)
    np.testing.assert_allclose(found.truth[:, :, 0], plain.y * scaled.std + scaled.mean)
    rows = frame[frame["item_id"] == "a"].reset_index()
    for number, start in enumerate(found.starts):
        same(found.arrays["past"][number, :, 0], rows["visits"][start - 8 : start])
        same(found.arrays["future"][number], rows[["temp", "holiday"]][start - 8 : start + 3])
    assert found.arrays["static"].shape == (len(found.starts), 1)
    assert one.region(8, 3, 64).starts.tolist() == cut_region(one.series, 8, 3, 64).starts.tolist()
    assert one.scales(3)["visits"] == pytest.approx(rows["visits"][:end].std(ddof=0))


def test_blocks_come_from_before_the_end_and_a_static_one_from_other_series(frame):
    (one, other) = read(frame)
    rows = frame[frame["item_id"] == "a"]
    blocks = one.blocks("temp", 10, 30)
    same(blocks, [rows["temp"][start : start + 10] for start in range(21)])
    assert len(one.blocks("temp", 10, 30, count=3)) == 3
    assert one.blocks("load", 31, 30).shape == (0, 31)
    same(one.blocks("region", 1, 30), [[1]])
    same(other.blocks("region", 1, 30), [[0]])
    with pytest.raises(HrxError, match=r"Unknown channel 'tempe'. Did you mean 'temp'"):
        one.blocks("tempe", 10, 30)


def test_an_audit_reads_the_same_covariates_from_a_file_and_its_name_stays(frame, tmp_path: Path):
    frame.to_csv(tmp_path / "t.csv", index=False)
    roles = "target=load&past=visits&future=temp,holiday&static=region"
    (dataset,) = open_source(f"csv:{tmp_path / 't.csv'}?{roles}")
    assert (dataset.count, dataset.variates, dataset.joint) == (2, 1, False)
    assert "past: 'visits', future: 'temp', 'holiday', static: 'region'" in dataset.note
    one, expected = CovariateSeries(dataset.read(1)), read(frame)[1]
    for role, values in expected.windows(8, 3, 4, 1).arrays.items():
        np.testing.assert_allclose(one.windows(8, 3, 4, 1).arrays[role], values, rtol=1e-12)
    (alone,) = open_source(f"csv:{tmp_path / 't.csv'}?target=load&unused=ignore")
    assert alone.read(1).fingerprint != dataset.read(1).fingerprint
    (joint,) = open_source(f"csv:{tmp_path / 't.csv'}?target=load,visits&unused=ignore")
    assert (joint.joint, joint.variates, joint.items) == (True, 2, 2)
    assert joint.read_item(0).values.shape == (2, STEPS)
    assert json.dumps(joint.read_item(0).names) == '["load", "visits"]'


def entry(dated: bool) -> dict[str, object]:
    random = np.random.default_rng(3)
    times = {"timestamp": list(DAYS)} if dated else {"start": DAYS[0], "freq": "D"}
    return times | {
        "item_id": "a",
        "target": random.normal(size=STEPS),
        "past_feat_dynamic_real": random.normal(size=(2, STEPS)),
        "feat_dynamic_real": random.normal(size=STEPS + AHEAD),
        "shop": "north",
    }


@pytest.mark.parametrize("dated", [True, False])
def test_columns_of_an_entry_have_roles_and_those_without_are_named(dated: bool):
    given = entry(dated)
    options = Options(past=("past_feat_dynamic_real",), future=("feat_dynamic_real",), static=("shop",))
    (one,) = read([given], options)
    assert one.names["past"] == ("past_feat_dynamic_real[0]", "past_feat_dynamic_real[1]")
    window = one.window(STEPS, AHEAD)
    same(window["past"][0].T, given["past_feat_dynamic_real"])
    same(window["future"][0, :, 0], given["feat_dynamic_real"])
    assert (one.labels, one.note, one.after(1).tolist()) == ({"shop": ("north",)}, "", [DAYS[STEPS]])
    (row,) = read([given], Options(past=("past_feat_dynamic_real[1]",)))
    same(row.window(STEPS, AHEAD)["past"][0, :, 0], given["past_feat_dynamic_real"][1])
    assert "not used: feat_dynamic_real, shop" in row.note
    assert "Unknown column 'past_feat'" in refused([given], Options(past=("past_feat",)))
    short = {**given, "past_feat_dynamic_real": [1.0, 2.0]}
    assert "'past_feat_dynamic_real' has 2 values, its target 40" in refused([short], options)


def test_targets_of_an_entry_are_forecast_together_where_they_are_named():
    given = {"start": DAYS[0], "freq": "D", "a": [1.0, 2, 3], "b": [4.0, 5, 6], "target": [7.0, 8, 9]}
    (one,) = read([given], Options(target=("a", "b")), None)
    same(one.target, [[1, 2, 3], [4, 5, 6]])
    assert (one.names, one.item) == ({"target": ("a", "b")}, "0")


def test_the_weather_of_the_sample_has_covariates_and_is_read_by_its_name_only():
    assert "seattle_weather/D" not in [dataset.name for dataset in open_source()]
    (dataset,) = open_source("sample:seattle_weather/D")
    (plain,) = open_source("sample:seattle/D")
    one = CovariateSeries(dataset.read(0))
    assert one.names == {"target": ("temp_max",), "past": ("precipitation", "temp_min", "wind")}
    for number, name in enumerate(("precipitation", "temp_min", "wind")):
        index = [plain.row(i).name for i in range(4)].index(name)
        same(one.series.covariates[number].values, plain.row(index).values)
    (together,) = open_source("sample:seattle/D", Options(target=("temp_max", "temp_min"), unused="ignore"))
    assert (together.joint, together.read_item(0).names) == (True, ("temp_max", "temp_min"))
    (again,) = open_source("sample:seattle/D?target=temp_max,temp_min&unused=ignore")
    assert again.read_item(0).fingerprint == together.read_item(0).fingerprint
    (series,) = read("sample:seattle/D?target=temp_max&past=wind&unused=ignore", Options(), None)
    assert series.names == {"target": ("temp_max",), "past": ("wind",)}
    (series,) = read("sample:seattle_weather/D?target=temp_max&unused=ignore", Options(), None)
    assert series.names == {"target": ("temp_max",)}
    (series,) = read("sample:seattle_weather/D", Options(), None)
    assert str(series.times[0].date()) == "2012-01-01"
    same(series.window(9, 3)["past"], one.window(9, 3)["past"])


@pytest.fixture
def official(tmp_path: Path) -> Path:
    """A folder in GIFT-Eval's format: two rows of two variates with three covariates."""
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed (pip install 'hrx[gift-eval]')")
    pytest.importorskip("datasets", reason="datasets is not installed (pip install 'hrx[gift-eval]')")
    random = np.random.default_rng(0)
    lists = pa.list_(pa.list_(pa.float32()))
    rows = [
        {
            "item_id": f"T{row}",
            "start": pd.Timestamp("2020-01-01"),
            "freq": "H",
            "target": random.normal(size=(2, 90)).tolist(),
            "past_feat_dynamic_real": [[None, *range(1, 90)], *random.normal(size=(2, 90)).tolist()],
        }
        for row in range(2)
    ]
    kinds = {"item_id": pa.string(), "start": pa.timestamp("s"), "freq": pa.string(), "target": lists}
    schema = pa.schema([*kinds.items(), ("past_feat_dynamic_real", lists)])
    folder = tmp_path / "weather" / "H"
    folder.mkdir(parents=True)
    name = "data-00000-of-00001.arrow"
    with (folder / name).open("wb") as file, pa.ipc.new_stream(file, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=schema))
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    return tmp_path


def test_the_past_columns_of_an_official_folder_are_covariates_on_request(official: Path):
    pa = pytest.importorskip("pyarrow")
    with (official / "weather/H/data-00000-of-00001.arrow").open("rb") as file:
        stored = pa.ipc.open_stream(file).read_all().to_pylist()
    (plain,) = open_source(str(official))
    assert plain.note == "not used: past_feat_dynamic_real; past=past_feat_dynamic_real reads it"
    assert plain.read(3).covariates == ()
    (dataset,) = open_source(str(official), Options(past=("past_feat_dynamic_real",)))
    assert (dataset.count, dataset.joint, dataset.note) == (4, False, "past: past_feat_dynamic_real")
    for index, row in enumerate(dataset.rows()):
        for number, one in enumerate(row.covariates):
            same(one.values, [np.nan if v is None else v for v in stored[index // 2]["past_feat_dynamic_real"][number]])
    found = CovariateSeries(dataset.read(3))
    assert found.names["past"] == tuple(f"past_feat_dynamic_real[{number}]" for number in range(3))
    (joint,) = open_source(f"{official}?target=target&past=past_feat_dynamic_real[2]")
    item = CovariateSeries(joint.read_item(1))
    assert (joint.joint, item.target.shape, len(item.names["past"])) == (True, (2, 90), 1)
    same(item.series.covariates[0].values, stored[1]["past_feat_dynamic_real"][2])
    for options, sentence in (
        (Options(past=("feat",)), "Unknown column 'feat'"),
        (Options(target=("load",)), "its column 'target', not 'load'"),
        (Options(past=("past_feat_dynamic_real[7]",)), "has 3 rows, counted from 0"),
    ):
        with pytest.raises(HrxError, match=sentence):
            open_source(str(official), options)[0].read(0)


def test_the_covariates_of_a_real_folder(real_data: Path):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed (pip install 'hrx[gift-eval]')")
    folder = real_data / "gift_eval" / "bizitobs_l2c" / "H"
    rows = datasets.Dataset.from_file(str(folder / "data-00000-of-00001.arrow"))[0]["past_feat_dynamic_real"]
    (dataset,) = open_source(str(folder), Options(target=("target",), past=("past_feat_dynamic_real",)))
    one = CovariateSeries(dataset.read_item(0))
    dropped = one.series.dropped
    for found, expected in zip(one.series.covariates, rows, strict=True):
        same(found.values, np.array(expected, dtype=float)[dropped:])
    assert one.windows(96, 24, 4, 0).arrays["past"].shape == (4, 96, len(rows))


TASKS = """
tasks:
- {{dataset_path: {path}, horizon: 4, num_windows: 3, window_step_size: 5, seasonality: 7, target: load,
   known_dynamic_columns: [price, promo], past_dynamic_columns: [visits], static_columns: [region], task_name: shops}}
- {{dataset_path: {path}, horizon: 4, target: [load, visits], task_name: pair, initial_cutoff: "2024-02-01"}}
"""


@pytest.fixture
def tasks(tmp_path: Path) -> tuple[Path, pd.DataFrame]:
    """Two series of 50 and 60 days, with the tasks of a benchmark on them."""
    pytest.importorskip("fev", reason="fev is not installed (pip install 'hrx[fev]')")
    random, frames = np.random.default_rng(0), []
    for number, length in enumerate((50, 60)):
        # fev gives 32-bit floats, which hold these values.
        columns = {name: random.integers(0, 999, length) / 8 for name in ("load", "price", "visits")}
        days = pd.date_range("2024-01-01", periods=length, freq="D")
        promo = np.where(random.random(length) < 0.5, "yes", "no")
        frames.append(
            pd.DataFrame({"id": f"s{number}", "timestamp": days, **columns, "promo": promo, "region": f"r{number}"})
        )
    frame = pd.concat(frames, ignore_index=True)
    frame.to_parquet(tmp_path / "data.parquet")
    (tmp_path / "tasks.yaml").write_text(TASKS.format(path=tmp_path / "data.parquet"))
    return tmp_path / "tasks.yaml", frame


def fev_windows(task: Any, frame: pd.DataFrame) -> list[Any]:
    """The windows of a task as fev cuts them. Its own reader of files needs an older version of datasets."""
    fev, datasets = pytest.importorskip("fev"), pytest.importorskip("datasets")
    items = [group for _, group in frame.groupby("id")]
    columns = {name: [group[name].to_list() for group in items] for name in frame.columns.drop(["id", "region"])}
    columns |= {name: [group[name].iloc[0] for group in items] for name in ("id", "region")}
    full = datasets.Dataset.from_dict(columns).with_format("numpy")
    known, past, static = task.known_dynamic_columns, task.past_dynamic_columns, task.static_columns
    fixed = (task.horizon, 1, None, "id", "timestamp", task.target_columns, known, past, static)
    return [fev.EvaluationWindow(full, cutoff, *fixed) for cutoff in task.cutoffs]


def test_tasks_of_fev_have_their_own_windows_and_columns(tasks: tuple[Path, pd.DataFrame]):
    fev = pytest.importorskip("fev", reason="fev is not installed (pip install 'hrx[fev]')")
    path, frame = tasks
    (dataset,) = open_source(f"fev:{path}:shops")
    assert (dataset.name, dataset.season, dataset.count, dataset.joint) == ("shops/D", 7, 2, False)
    official = fev_windows(fev.Benchmark.from_yaml(path).tasks[0], frame)
    for index in range(2):
        one = CovariateSeries(dataset.read(index))
        found = one.windows(9, 4, 3, seed=5)
        assert len(found.starts) == len(official)
        for number, window in enumerate(official):
            past, ahead = (rows[index] for rows in window.get_input_data())
            same(found.arrays["target"][number, :, 0], past["load"][-9:])
            same(found.arrays["past"][number, :, 0], past["visits"][-9:])
            same(found.arrays["future"][number, :, 0], [*past["price"][-9:], *ahead["price"]])
            promo = [("no", "yes").index(cell) for cell in [*past["promo"][-9:], *ahead["promo"]]]
            same(found.arrays["future"][number, :, 1], promo)
            same(found.arrays["static"], np.full((3, 1), index))
            same(found.truth[number, :, 0], window.get_ground_truth()[index]["load"])
        assert one.windows(9, 4, 1, 0).starts[0] in found.starts
        assert one.region(9, 4, 64).starts.tolist() == found.starts.tolist()
        assert cut(dataset.read(index), 9, 4, 3, 0).starts.tolist() == found.starts.tolist()
    assert pickle.loads(pickle.dumps(dataset)).read(1).fingerprint == dataset.read(1).fingerprint
    (alone,) = open_source(f"fev:{path}:shops", Options(unused="ignore"))
    assert alone.read(0).covariates == ()


def test_several_targets_of_a_task_are_forecast_together_and_a_cutoff_may_be_a_time(tasks):
    path, frame = tasks
    (_, pair) = open_source(f"fev:{path}")
    one = CovariateSeries(pair.read_item(1))
    assert (pair.name, pair.joint, one.names) == ("pair/D", True, {"target": ("load", "visits")})
    same(one.target, frame.loc[frame["id"] == "s1", ["load", "visits"]].T)
    assert one.windows(9, 4, 4, 0).starts.tolist() == [32]  # 1 February is the last day of the past
    with pytest.raises(HrxError, match=r"none of the 1 windows of the task has 40 values before it"):
        one.windows(40, 4, 4, 0)


def test_a_window_of_fev_is_an_entry_whose_columns_take_roles(tasks):
    fev = pytest.importorskip("fev", reason="fev is not installed (pip install 'hrx[fev]')")
    path, frame = tasks
    window = fev_windows(fev.Benchmark.from_yaml(path).tasks[0], frame)[2]
    options = Options(past=("visits",), future=("price", "promo"), static=("region",))
    one = read(window, options, 4)[1]
    rows = frame[frame["id"] == "s1"]
    same(one.window(9, 4)["future"][0, :, 0], rows["price"][-13:])
    same(one.window(9, 4)["past"][0, :, 0], rows["visits"][-13:-4])
    assert one.after(4).tolist() == rows["timestamp"][-4:].tolist()
    assert "not used: visits, region, price, promo" in read(window, Options(), None)[0].note


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("fev:", "fev: needs a file of tasks"),
        ("fev:none.yaml", "none.yaml does not exist"),
        ("fev:{path}:shop", "Unknown task 'shop'. Did you mean 'shops'"),
        ("fev:{folder}/broken.yaml", "does not hold tasks of fev"),
    ],
)
def test_tasks_that_cannot_be_read_are_a_sentence(tasks, text: str, sentence: str):
    path, _ = tasks
    (path.parent / "broken.yaml").write_text("tasks: [{horizon: 0}]")
    with pytest.raises(HrxError, match=sentence):
        open_source(text.format(path=path, folder=path.parent))


def test_a_task_without_its_data_is_listed_as_damaged_and_a_past_column_is_not_known_ahead(tasks):
    path, _ = tasks
    with pytest.raises(HrxError, match="'visits' is not known ahead in this task"):
        open_source(f"fev:{path}:shops", Options(future=("visits",)))
    with pytest.raises(HrxError, match="Unknown column 'visit'"):
        open_source(f"fev:{path}:shops", Options(past=("visit",)))
    (path.parent / "data.parquet").unlink()
    found = open_source(f"fev:{path}")
    assert [dataset.name for dataset in found] == ["shops", "pair"]
    assert all("its data cannot be read" in dataset.damage for dataset in found)
