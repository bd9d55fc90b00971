"""The heat map of a run."""

import struct
import warnings

import numpy as np
import pytest
from helpers.damage import change
from matplotlib.backends.backend_agg import FigureCanvasAgg

from hrx.errors import HrxError
from hrx.records.ledger import LedgerWarning
from hrx.reports import heatmaps
from hrx.reports.heatmap import draw, footing, heatmap, title


def _png_size(path):
    """Width and height, from the header that every PNG begins with."""
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", head[16:24])


def _drawn(figure):
    FigureCanvasAgg(figure).draw()
    return figure.axes


@pytest.mark.parametrize(("lookback", "horizon"), [(96, 24), (512, 96), (24, 48)])
def test_window_heat_map_and_shared_vector_stand_on_the_same_steps(record, example, lookback, horizon):
    one = record(lookback=lookback, horizon=horizon)
    window, heat, shared, _ = _drawn(draw(example(one), one))
    assert window.get_xlim() == heat.get_xlim() == shared.get_xlim() == (-lookback, horizon)
    boxes = [axes.get_position() for axes in (window, heat, shared)]
    assert len({(round(box.x0, 9), round(box.x1, 9)) for box in boxes}) == 1
    for axes in (heat, shared):
        assert axes.images[0].get_extent()[:2] == [-lookback, 0]
    # The line's points are the centres of the image's columns.
    np.testing.assert_allclose(window.lines[0].get_xdata(), np.arange(-lookback, 0) + 0.5)


def test_the_first_row_is_the_first_step_and_colours_show_the_matrix_over_its_maximum(record, example):
    one = record()
    stored = example(one)
    _, heat, shared, bar = _drawn(draw(stored, one))
    np.testing.assert_allclose(heat.images[0].get_array(), stored.matrix / stored.matrix.max())
    mean = sum(stored.matrix) / len(stored.matrix)
    np.testing.assert_allclose(shared.images[0].get_array()[0], mean / mean.max())
    assert heat.images[0].get_extent()[2:] == [24.5, 0.5]
    assert [label.get_text() for label in heat.get_yticklabels()][:1] == ["1"]
    assert [label.get_text() for label in heat.get_yticklabels()][-1:] == ["24"]
    top = np.quantile(stored.matrix / stored.matrix.max(), 0.99)
    assert heat.images[0].norm(top / 4) == pytest.approx(0.5)
    assert "square-root" in bar.get_ylabel()


def test_rows_of_scored_steps_alone_are_labelled_with_these(record, example):
    one = record()
    _, heat, _, _ = _drawn(draw(example(one, rows=8), one))
    labels = [label.get_text() for label in heat.get_yticklabels()]
    assert labels == ["1", "4", "8", "11", "14", "17", "21", "24"]


def test_the_title_names_the_run_and_whether_its_gains_are_meaningful(record):
    heading, facts = title(record())
    assert heading == "bolt-mini on us_births/D, series T1"
    assert facts == "L 96, H 24, first of 4 windows; run beats naive; g_own +0.120, g_margin +0.200"
    assert "does not beat naive: gains are not meaningful; g_own -" in title(record(beats_naive=0, g_own=None))[1]


def test_below_the_heat_map_stand_the_naive_errors_and_the_effective_lookback(record):
    one = record(mse=0.5, mse_zero=1.0, mse_last=0.9, mse_seasonal=0.2, effective_lookback=41.6)
    naive, reach = footing(one)
    errors = "of predicting the mean 1, of repeating the last value 0.9, the last season"
    assert naive == f"mean squared error 0.5; {errors} 0.2"
    assert footing(one.updated(mse_seasonal=None))[0].endswith("the last season unknown")
    assert reach == "effective lookback 42 of 96 steps: 90 % of a row's mass on average"
    assert footing(record(mse=None)) == ()


def test_nothing_is_cut_and_no_text_overlaps_another(record, example):
    one = record(model="W" * 200, dataset="W" * 200, series="W" * 200, lookback=2048, horizon=720, beats_naive=0)
    one = one.updated(effective_lookback=1999.0)
    figure = draw(example(one), one)
    _drawn(figure)
    renderer = figure.canvas.get_renderer()
    page = figure.bbox
    box = figure.get_tightbbox(renderer).transformed(figure.dpi_scale_trans)
    assert box.x0 >= page.x0
    assert box.x1 <= page.x1
    assert box.y0 >= page.y0
    assert box.y1 <= page.y1
    texts = [figure._suptitle, figure._supxlabel, figure.axes[0].get_legend(), figure.axes[0].yaxis.label]
    texts.append(figure.axes[2].xaxis.label)
    texts += [*figure.axes[1].get_yticklabels(), figure.axes[1].yaxis.label]
    boxes = [text.get_window_extent(renderer) for text in texts]
    assert not [(i, j) for i in range(len(boxes)) for j in range(i) if boxes[i].overlaps(boxes[j])]


def test_there_is_a_whole_png_per_model_and_dataset_and_nothing_else(record, example, ledger, tmp_path):
    runs = [record(dataset=d, model=m, seed=s) for d in ("a/D", "b/H") for m in ("m1", "m2") for s in range(2)]
    runs.append(record(dataset="without a matrix"))
    path = ledger(runs, examples=[example(one) for one in runs if one.seed == 0 and "/" in one.dataset])
    found = heatmaps(path, tmp_path / "out" / "deep")
    names = [f"{m}--{d}--t1--96x24.png" for d in ("a-d", "b-h") for m in ("m1", "m2")]
    assert [one.name for one in found] == names
    assert sorted(found) == sorted((tmp_path / "out" / "deep").iterdir())
    assert {_png_size(one) for one in found} == {(1200, 864)}


def test_a_damaged_example_is_named_and_the_others_are_drawn(record, example, ledger, tmp_path):
    runs = [record(dataset=dataset) for dataset in ("a/D", "b/H")]
    path = ledger(runs, examples=map(example, runs))
    change(path, "UPDATE matrices SET x = ? WHERE key = ?", b"other", runs[0].key)
    with pytest.warns(LedgerWarning, match=r"example \(key .*it is not as it was written"):
        found = heatmaps(path, tmp_path / "out")
    assert [one.name for one in found] == ["bolt-mini--b-h--t1--96x24.png"]


def test_of_several_stored_runs_the_largest_setting_is_drawn(record, example, ledger, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("hrx.reports.heatmap.heatmap", lambda stored, one, path: drawn.append(one.lookback) or path)
    runs = [record(lookback=lookback) for lookback in (96, 512, 192)]
    heatmaps(ledger(runs, examples=map(example, runs)), tmp_path)
    assert drawn == [512]


def test_an_example_that_beats_naive_is_drawn_before_a_larger_one_that_does_not(
    record, example, ledger, tmp_path, monkeypatch
):
    drawn = []
    monkeypatch.setattr("hrx.reports.heatmap.heatmap", lambda stored, one, path: drawn.append(one.lookback) or path)
    runs = [record(lookback=96), record(lookback=512, beats_naive=0), record(lookback=192)]
    heatmaps(ledger(runs, examples=map(example, runs)), tmp_path)
    assert drawn == [192]


def test_names_of_any_kind_give_different_files_inside_the_directory(record, example, ledger, tmp_path, monkeypatch):
    monkeypatch.setattr("hrx.reports.heatmap.heatmap", lambda stored, one, path: path)
    names = ["../../etc/passwd", "a/D", "a-d", "A D", "数据", "данные", "x" * 300, "x" * 301, "nul\x00", ""]
    runs = [record(dataset=name, lookback=12, horizon=4) for name in names]
    found = heatmaps(ledger(runs, examples=map(example, runs)), tmp_path / "out")
    assert len({one.name.lower() for one in found}) == len(names)
    assert all(one.parent == tmp_path / "out" and len(one.name) < 200 and one.name.isascii() for one in found)


@pytest.mark.parametrize("name", ["$\\frac{$ $", "数据\x1b[31m\u202e", "half \ud800 a pair"])
def test_a_hostile_name_is_drawn_as_text_without_a_warning(record, example, tmp_path, name):
    one = record(dataset=name, lookback=12, horizon=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        width, height = _png_size(heatmap(example(one), one, tmp_path / "a.png"))
    assert width > height > 0


def test_the_same_ledger_gives_the_same_bytes(record, example, tmp_path):
    one = record()
    for suffix in ("png", "svg"):
        first, second = (heatmap(example(one), one, tmp_path / f"{name}.{suffix}") for name in "ab")
        assert first.read_bytes() == second.read_bytes()


def test_a_heat_map_can_be_svg_but_not_gif(record, example, tmp_path):
    one = record()
    assert b"<svg" in heatmap(example(one), one, tmp_path / "a.svg").read_bytes()
    with pytest.raises(HrxError, match=r"'\.gif'.*\.png or \.svg"):
        heatmap(example(one), one, tmp_path / "a.gif")


@pytest.mark.parametrize("fill", [0.0, np.nan])
def test_a_matrix_of_zeros_or_without_numbers_is_drawn_without_a_warning(record, example, tmp_path, fill):
    one = record(horizon=1, g_own=None)
    stored = example(one)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        empty = stored._replace(matrix=np.full_like(stored.matrix, fill))
        width, height = _png_size(heatmap(empty, one, tmp_path / "a.png"))
    assert width > height > 0


def test_an_error_while_drawing_leaves_the_old_file_and_no_temporary_file(record, example, tmp_path, monkeypatch):
    one = record()
    path = tmp_path / "a.png"
    path.write_bytes(b"old")

    def fail(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(HrxError, match=r"a\.png cannot be written: No space left"):
        heatmap(example(one), one, path)
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("a.png", b"old")]


def test_a_file_where_the_directory_should_be_is_named(record, ledger, tmp_path):
    (tmp_path / "out").write_text("in the way")
    with pytest.raises(HrxError, match=r"cannot create .*out: "):
        heatmaps(ledger([record()]), tmp_path / "out")


def test_an_empty_ledger_gives_no_heat_maps(ledger, tmp_path):
    assert heatmaps(ledger([]), tmp_path / "out") == []


def test_drawing_leaves_the_callers_settings_alone(record, example, tmp_path):
    import matplotlib

    with matplotlib.rc_context({"font.size": 31, "text.usetex": True}):
        heatmap(example(record()), record(), tmp_path / "a.png")
        assert matplotlib.rcParams["font.size"] == 31
