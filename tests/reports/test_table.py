"""One table in six forms: the same numbers in each, and names from anywhere as nothing but text."""

import csv
import io
import json
import re
import unicodedata
from html.parser import HTMLParser

import pytest
from helpers.constructed import runs

from hrx.reports import tables
from hrx.reports.cells import (
    COUNT,
    FINE_GAIN,
    GAIN,
    INTERVAL,
    SHARE,
    TIMES,
    Cell,
    Format,
    P,
    Span,
    TableColumn,
    TableRow,
    plain,
)
from hrx.reports.latex import escape_latex, latex_number
from hrx.reports.table import ReportTable
from hrx.reports.text import escape_markdown

HOSTILE = {
    "html": "<script>alert('x')</script><img src=x onerror=alert(1)>",
    "attribute": '" onmouseover="alert(1)',
    "latex": r"\input{/etc/passwd} $x^2$ 50% #1 {a} ~b & c_d",
    "csv": "=cmd|' /C calc'!A0",
    "plus": "+1+1",
    "at": "@SUM(A1)",
    "markdown": "a|b **bold** [link](http://evil.example) `code` ![i](x)",
    "heading": "# 1. - list",
    "mention": "@everyone",
    "ansi": "\x1b[31mred\x1b[0m\x07",
    "newline": "one\ntwo\r\nthree\x85four\u2028five",
    "direction": "abc\u202egnp.exe\u2066x",
    "hebrew": "שלום",
    "long": "x" * 5000,
    "zalgo": "a" + "\u0301" * 500,
    "surrogate": "bad\ud800end",
    "nul": "a\x00b",
    "wide": "数据集" * 30,
}

COLUMNS = (
    TableColumn("name", "Name"),
    TableColumn("g_own", "g_own", GAIN, hue="red"),
    TableColumn("ci", "95% CI", INTERVAL),
    TableColumn("positive", "Positive", SHARE, hue="red"),
    TableColumn("n", "n", COUNT),
)


def a_table(name: str = "Chronos-2", *, n: int = 1234) -> ReportTable:
    values = (name, 0.0702, Span(-0.01, 0.25), 0.655, n)
    cells = tuple(
        column.cell(value, n=n, significant=column.hue != "") for column, value in zip(COLUMNS, values, strict=True)
    )
    other = tuple(column.cell(value) for column, value in zip(COLUMNS, ("b", -0.5, None, 0.1, 20), strict=True))
    beside = (other[0], other[1].beside(-0.25), *other[2:])
    rows = (TableRow(cells, key=name), TableRow(beside, key="b", section="S"))
    return ReportTable("t", "A title", COLUMNS, rows, "A note.", "tab:t")


@pytest.mark.parametrize(
    ("value", "format", "text", "tex"),
    [
        (0.07, GAIN, "+0.070", "$+0.070$"),
        (-0.0001, GAIN, "-0.000", "$-0.000$"),
        (0.0, GAIN, "+0.000", "$+0.000$"),
        (-0.0, GAIN, "+0.000", "$+0.000$"),
        (0.098, Format("number", plus=False), "0.098", "$0.098$"),
        (0.0011, FINE_GAIN, "+0.0011", "$+0.0011$"),
        (0.664, SHARE, "66%", r"66\%"),
        (16719, COUNT, "16,719", "16{,}719"),
        (Span(0.745, -0.7), INTERVAL, "[+0.745, -0.700]", "$[+0.745, -0.700]$"),
        (Span(float("nan"), 1.0), INTERVAL, "-", "--"),
        (1e-13, P, "<10^-12", "$<10^{-12}$"),
        (0.0153, P, "0.015", "$0.015$"),
        (0.00027, P, "2.7e-04", "$2.7e-04$"),
        (3.14, TIMES, "3.1×", r"$3.1\times$"),
        (9.96, TIMES, "10×", r"$10\times$"),
        (592.4, TIMES, "592×", r"$592\times$"),
        (None, GAIN, "-", "--"),
        (float("nan"), SHARE, "-", "--"),
    ],
)
def test_numbers_are_written_as_the_paper_writes_them(value, format, text, tex) -> None:
    assert plain(value, format) == text
    assert latex_number(plain(value, format)) == tex


def test_text_keeps_every_number_whole_however_narrow_the_terminal() -> None:
    shown = a_table("x" * 300).to_text(40)
    assert "[-0.010, +0.250]" in shown
    assert "1,234" in shown
    assert "+0.070" in shown
    assert max(map(len, shown.splitlines())) < 110


def test_markdown_has_as_many_fields_in_every_line() -> None:
    lines = [line for line in a_table().to_markdown().splitlines() if line.startswith("|")]
    assert {line.count("|") for line in lines} == {8}
    assert "| Chronos-2 | **+0.070** | - | - | [-0.010, +0.250] | **66%** | 1,234 |" in lines
    assert "| b | -0.500 | -0.250 | -0.250 | - | 10% | 20 |" in lines


def test_latex_is_balanced_and_has_the_colours_of_the_paper() -> None:
    tex = a_table().to_latex()
    assert r"Chronos-2 & \textcolor{hred}{$\mathbf{+0.070}$} & $[-0.010, +0.250]$" in tex
    assert r"\quad \quad \textit{published} & $-0.250$ &  &  &  \\" in tex
    assert r"\quad \quad \textit{difference} & $-0.250$ &  &  &  \\" in tex
    assert r"\textcolor{hred}{\textbf{66\%}} & 1{,}234 \\" in tex
    assert r"\multicolumn{5}{l}{\textit{S}} \\" in tex
    assert balanced(tex)
    for environment in ("table", "adjustbox", "tabular"):
        assert tex.count(rf"\begin{{{environment}}}") == tex.count(rf"\end{{{environment}}}") == 1
    rows = [line for line in tex.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
    assert {len(re.findall(r"(?<!\\)&", line)) for line in rows} == {4}


def test_csv_has_full_precision_and_fields_of_their_own_for_intervals_and_published_values() -> None:
    rows = list(csv.DictReader(io.StringIO(a_table().to_csv())))
    assert rows[0]["name"] == "Chronos-2"
    assert float(rows[0]["g_own"]) == 0.0702
    assert (float(rows[0]["ci_low"]), float(rows[0]["ci_high"])) == (-0.01, 0.25)
    assert rows[0]["g_own_published"] == ""
    assert float(rows[1]["g_own_published"]) == float(rows[1]["g_own_difference"]) == -0.25
    assert [row["section"] for row in rows] == ["", "S"]


def test_json_has_values_texts_and_differences() -> None:
    loaded = json.loads(a_table().to_json())
    first, second = loaded["rows"]
    assert first["cells"]["ci"] == {"value": [-0.01, 0.25], "text": "[-0.010, +0.250]", "bold": False}
    assert second["cells"]["g_own"]["published"]["difference"] == -0.25
    assert [column["name"] for column in loaded["columns"]] == ["name", "g_own", "ci", "positive", "n"]


def test_a_row_of_few_runs_says_so_in_every_form_and_is_never_bold() -> None:
    table = a_table(n=9)
    assert "Chronos-2 (n<10: few runs)" in table.to_text(120)
    assert "| Chronos-2 (n&lt;10: few runs) | +0.070 |" in table.to_markdown()
    assert r"Chronos-2 (n\textless{}10: few runs) & $+0.070$" in table.to_latex()
    assert next(csv.DictReader(io.StringIO(table.to_csv())))["few"] == "1"
    assert json.loads(table.to_json())["rows"][0]["few"] is True
    assert "n&lt;10: few runs" in table.to_html()
    assert 'bold red">+0.070' not in table.to_html()


def test_a_row_must_have_a_cell_for_every_column() -> None:
    with pytest.raises(ValueError, match="more or fewer cells"):
        ReportTable("t", "A title", COLUMNS, (TableRow((Cell("a"),)),))


class Page(HTMLParser):
    """What a browser makes of it: tags, attributes and text."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data):
        self.text += data


def balanced(tex: str) -> bool:
    """Whether every brace that LaTeX sees is closed."""
    depth = 0
    for brace in re.findall(r"(?<!\\)(?:\\\\)*([{}])", tex):
        depth += 1 if brace == "{" else -1
        if depth < 0:
            return False
    return depth == 0


def unprintable(text: str) -> set[str]:
    return {c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")}


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_name_is_text_on_a_terminal(name: str) -> None:
    shown = a_table(name).to_text()
    assert not unprintable(shown)
    assert len(shown) < 2000
    assert len(shown.splitlines()) < 14


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_name_is_text_in_markdown(name: str) -> None:
    shown = a_table(name).to_markdown()
    assert not unprintable(shown)
    lines = [line for line in shown.splitlines() if line.startswith("|")]
    assert len(lines) == 5
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {8}
    label = lines[2].split(" | ")[0]
    assert not re.search(r"<(?!!-- -->)", label)
    assert not re.search(r"(?<!\\)[*`\[\]_]", label)
    assert not re.search(r"(^|\W)@\w", label)
    assert not re.search(r"https?:", label)
    assert len(label) < 300


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_name_is_text_in_latex(name: str) -> None:
    shown = a_table(name).to_latex()
    assert not unprintable(shown)
    assert balanced(shown)
    label = next(line for line in shown.splitlines() if r"{$\mathbf{+0.070}$}" in line).split(r" & \textcolor")[0]
    commands = set(re.findall(r"\\([A-Za-z]+)", label))
    assert commands <= {
        "textbackslash", "textless", "textgreater", "textbar", "textasciicircum", "textasciitilde", "textasciigrave",
        "ldots",
    }  # fmt: skip
    assert not re.search(r"(?<!\\)[$&#%_^~]", label)
    assert len(label) < 600


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_name_is_text_in_csv(name: str) -> None:
    table = a_table(name).to_csv()
    assert not unprintable(table)
    rows = list(csv.reader(io.StringIO(table)))
    assert len(rows) == 3
    assert {len(row) for row in rows} == {len(rows[0])}
    assert rows[1][1][0] not in "=+-@|%\t\r"


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_name_is_text_in_html(name: str) -> None:
    shown = a_table(name).to_html()
    harmless, hostile = Page(a_table("harmless").to_html()), Page(shown)
    assert hostile.tags == harmless.tags
    assert hostile.attributes == harmless.attributes
    assert not unprintable(shown)
    if name == HOSTILE["html"]:
        assert name in hostile.text


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_name_comes_through_json_unchanged(name: str) -> None:
    loaded = a_table(name).to_json()
    assert loaded.isascii()
    assert json.loads(loaded)["rows"][0]["cells"]["name"]["value"] == name


def test_hostile_names_of_records_pass_through_every_table_and_form() -> None:
    for name in HOSTILE.values():
        frame = runs(12, model=name, checkpoint=name, dataset=name, domain=name, estimator=name, g_own=0.1, rank=1.2)
        for table in tables(frame, against="published", estimator=name):
            assert not unprintable(table.to_text())
            assert not unprintable(table.to_markdown())
            assert balanced(table.to_latex())
            assert "<script" not in table.to_html().lower()
            json.loads(table.to_json())


def test_notes_escape_the_names_they_hold() -> None:
    assert escape_markdown("a|b <i> @you") == r"a\|b &lt;i&gt; @<!-- -->you"
    assert escape_latex("100 % of a_b") == r"100 \% of a\_b"
