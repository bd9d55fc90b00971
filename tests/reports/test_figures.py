"""Figures of a whole ledger."""

import warnings

import numpy as np
import pytest
from helpers import bootstrap, crowd
from matplotlib.backends.backend_agg import FigureCanvasAgg

from hrx.errors import HrxError
from hrx.reports import read
from hrx.reports.figures import (
    INK,
    ForestBar,
    bars,
    beating,
    bin_medians,
    check_format,
    deletion_curves,
    figures,
    forest,
    gain_against_rank,
    plain_style,
    save,
)
from hrx.reports.statistics import Evidence


def _drawn(figure):
    FigureCanvasAgg(figure).draw()
    return figure


def _inside(figure):
    """Whether all that is drawn lies on the page."""
    box = figure.get_tightbbox(figure.canvas.get_renderer()).transformed(figure.dpi_scale_trans)
    page = figure.bbox
    return box.x0 >= page.x0 - 1 and box.x1 <= page.x1 + 1 and box.y0 >= page.y0 - 1 and box.y1 <= page.y1 + 1


def _apart(figure, texts):
    renderer = figure.canvas.get_renderer()
    boxes = [text.get_window_extent(renderer) for text in texts if text.get_text()]
    return not [(i, j) for i in range(len(boxes)) for j in range(i) if boxes[i].overlaps(boxes[j])]


def bar(label: str, *values: float) -> ForestBar:
    return ForestBar(label, Evidence(values))


def test_the_bars_of_a_forest_are_median_clusters_of_runs_that_beat_naive(frame):
    runs = frame(crowd.records(400, models=2, datasets=4))
    chosen = beating(runs)
    assert set(chosen["beats_naive"]) == {1}
    for by, unit in (("dataset", "series"), ("model", "sources")):
        for one in bars(chosen, by):
            values = bootstrap.source_values(chosen[chosen[by] == one.label], "g_margin")
            assert one.found.counted == f"{len(values)} {unit}"
            assert one.found.interval.point == pytest.approx(np.median(values), rel=1e-12)
            low, high = bootstrap.order_statistics(values)
            assert one.found.known[1:] == pytest.approx((np.nan, np.nan) if low is None else (low, high), nan_ok=True)
        medians = [one.found.interval.point for one in bars(chosen, by)]
        assert medians == sorted(medians, reverse=True)


def test_a_group_of_few_is_hollow_and_does_not_stretch_the_axis():
    shown = [bar("large", *np.linspace(0.05, 0.2, 6)), bar("few", -9.0, 3.0, 3.0, 3.0, 9.0)]
    (axes, *_) = _drawn(forest(shown)).axes
    large, few = axes.lines[1], axes.lines[3]
    assert large.get_markerfacecolor() == large.get_color() != INK
    assert few.get_markerfacecolor() == "white"
    low, high = axes.get_xlim()
    assert -0.1 < low < 0
    assert 0.2 < high < 0.3


def test_a_group_of_two_has_a_median_and_no_interval(frame, record):
    runs = frame([record(series="T1", g_margin=0.1), record(series="T2", g_margin=0.3)])
    (one,) = bars(runs, "model")
    assert (one.found.interval.point, one.found.n) == (pytest.approx(0.2), 2)
    assert np.isnan(one.found.known[1:]).all()
    figure = _drawn(forest([one], title="g_margin by model, m: runs that beat naive"))
    assert np.isnan(figure.axes[0].lines[0].get_xdata()).all()
    (legend,) = figure.legends
    assert legend.get_title().get_text() == "g_margin by model, m: runs that beat naive"
    assert [text.get_text() for text in legend.get_texts()] == ["median series of fewer than 6, 95 % interval"]


@pytest.mark.parametrize("count", [1, 8, 66])
def test_a_forest_of_long_names_is_whole_and_nothing_overlaps(count):
    shown = [bar(f"{k} " + "W" * 80 + " $x_{$", *np.linspace(0.0, 0.2, 12)) for k in range(count)]
    figure = _drawn(forest(shown))
    assert _inside(figure)
    labels = figure.axes[0].get_yticklabels()
    assert _apart(figure, [*labels, figure._supxlabel])
    assert all("…" in label.get_text() for label in labels)


def test_bins_hold_equally_many_points_and_their_medians():
    rng = np.random.default_rng(0)
    rank, gain = 1 + rng.random(160), rng.normal(size=160)
    found = bin_medians(rank, gain)
    order = sorted(range(160), key=lambda k: rank[k])
    parts = [order[20 * k : 20 * (k + 1)] for k in range(8)]
    expected = [(np.median(rank[part]), np.median(gain[part])) for part in parts]
    np.testing.assert_allclose(found, expected)
    assert len(bin_medians(rank[:19], gain[:19])) == 0


def test_gain_against_rank_says_how_many_there_are_and_of_what_unit(frame):
    runs = beating(frame(crowd.records(300, models=2, datasets=3)))
    figure = _drawn(gain_against_rank(runs))
    (axes,) = figure.axes
    count = len(runs.groupby(["model", "dataset", "series", "lookback", "horizon"]))
    assert axes.get_title(loc="left") == f"g_margin against rank\n{count} configurations that beat naive"
    assert "variance" in axes.get_ylabel()
    assert _inside(figure)
    assert _apart(figure, [*axes.get_xticklabels(), axes.xaxis.label])


def test_deletion_curves_have_a_line_for_each_row_and_a_panel_for_each_order(record):
    curves = np.arange(54, dtype=float).reshape(3, 2, 9)
    figure = _drawn(deletion_curves({"one": curves, "two " + "W" * 90: curves}))
    assert len(figure.axes) == 4
    for panel, which in zip(figure.axes, (0, 1, 0, 1), strict=True):
        for line, expected in zip(panel.lines, curves[:, which], strict=True):
            np.testing.assert_array_equal(line.get_ydata(), expected)
            np.testing.assert_allclose(line.get_xdata(), np.linspace(0, 1, 9))
    styles = {(line.get_linestyle(), line.get_marker()) for line in figure.axes[0].lines}
    assert len(styles) == 3  # distinct without colour
    assert _inside(figure)


@pytest.mark.slow
def test_a_ledger_gives_every_figure_in_every_format_and_the_same_bytes_again(tmp_path):
    path = crowd.write(tmp_path / "ledger.db", crowd.records(120, models=2, datasets=3), 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = figures(path, tmp_path / "a", read(path))
    names = {file.stem for file in first}
    kinds = {"g-margin-by-model", "g-margin-by-dataset", "gain-against-rank", "deletion-curves"}
    assert names == {f"2-models--{kind}" for kind in kinds}
    assert len(first) == 12
    again = figures(path, tmp_path / "b", read(path))
    assert [file.read_bytes() for file in first] == [file.read_bytes() for file in again]


@pytest.mark.slow
def test_impossible_numbers_are_drawn_like_missing_ones(tmp_path):
    def stored(name, margin, rank):
        many = crowd.records(120, models=1, datasets=2)
        chosen = [one.key for one in many if one.beats_naive][:3]
        changed = [one.updated(g_margin=margin, rank=rank) if one.key in chosen else one for one in many]
        return crowd.write(tmp_path / f"{name}.db", changed, 0)

    wrong, missing = stored("wrong", 1.7e308, np.inf), stored("missing", None, None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = figures(wrong, tmp_path / "wrong", read(wrong))
    expected = figures(missing, tmp_path / "missing", read(missing))
    assert len(drawn) == 9
    assert [file.read_bytes() for file in drawn] == [file.read_bytes() for file in expected]


def test_a_ledger_without_a_scored_run_gives_no_figures(ledger, record, tmp_path):
    path = ledger([record(status="excluded", reason="too short")])
    assert figures(path, tmp_path / "out", read(path)) == []


def test_an_unknown_suffix_is_refused(tmp_path):
    with pytest.raises(HrxError, match=r"'\.gif'.*\.png or \.svg or \.pdf"):
        check_format(tmp_path / "a.gif")
    with plain_style():
        assert save(forest([bar("a", *np.linspace(0.0, 0.2, 12))]), tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
