"""Names and numbers as text: cleaned, shortened, escaped for each format, laid out for a terminal, written to files.

A name in a record can hold anything. `hrx.text.clean` replaces what a terminal or a browser would execute; the
`escape_…` functions clean first and then escape for their format. `rich` measures, wraps and lays out text.
"""

import html
import io
import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.box import Box
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hrx.files import atomic_write
from hrx.files import make_directory as make_directory
from hrx.text import clean as clean

INDENT = "  "
LONGEST = 80
"""Terminal columns of a name in a table; a longer name is shortened."""
_LONGEST_CELL = 240
_LONGEST_SLUG = 40
_NARROWEST = 4
"""Terminal columns that a text column keeps in a narrow terminal."""
_NUMBER = re.compile(r"[<>]?[+\-−]?\d[\d.,]*(e[+\-]?\d+|\^-?\d+)?( ?%|×| pt)?|\[[^\[\]]*\d\]")
_HEAD_RULE = Box("    \n    \n -  \n    \n    \n    \n    \n    \n", ascii=True)
_PLAIN = Console(file=io.StringIO(), color_system=None, force_jupyter=False)


def shorten(text: str, width: int) -> str:
    """Text in at most `width` terminal columns. The middle is cut, since names differ at both ends."""
    if cell_len(text) <= width:
        return text
    tail = set_cell_size(text[::-1], (width - 1) // 2).rstrip()[::-1]
    return set_cell_size(text, width - 1 - cell_len(tail)).rstrip() + "…" + tail


def wrap(text: str, width: int) -> list[str]:
    """Text in lines of at most `width` terminal columns, broken at spaces where possible. At least one line."""
    lines = Text(" ".join(text.split())).wrap(_PLAIN, width, overflow="fold")
    return [line.plain.rstrip() for line in lines] or [""]


def hanging(lead: str, text: str, width: int) -> list[str]:
    """`lead` and the wrapped text, with its further lines indented to start below its first."""
    indent = " " * cell_len(lead)
    lines = wrap(text, width - len(indent))
    return [(indent if index else lead) + line for index, line in enumerate(lines)]


def render_table(headers: Sequence[str], rows: Iterable[Sequence[str | float | None]], width: int = 80) -> str:
    """A plain table in at most `width` columns: numbers right-aligned, text left-aligned and wrapped.

    A cell is text, a number, a boolean or None. Numbers are folded only where the numbers alone are too wide.
    """
    names = [clean(header) for header in headers]
    cells = [[_cell(cell) for cell in row] for row in rows]
    columns = list(zip(names, *cells, strict=True))
    known = [[cell for cell in cells if cell not in ("", "-", "nan", "inf", "-inf")] for _, *cells in columns]
    numeric = [bool(found) and all(map(_NUMBER.fullmatch, found)) for found in known]
    widths = [max(map(cell_len, column)) for column in columns]
    needed = sum(w if right else min(w, _NARROWEST) for w, right in zip(widths, numeric, strict=True))
    fits = needed + 2 * len(names) - 2 <= width
    table = Table(box=_HEAD_RULE, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for name, right in zip(names, numeric, strict=True):
        table.add_column(Text(name), justify="right" if right else "left", no_wrap=right and fits, overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    console = Console(file=io.StringIO(), width=width, color_system=None, force_jupyter=False)
    with console.capture() as capture:
        console.print(table)
    head, *body = capture.get().split("\n")
    at = next((index for index, line in enumerate(body) if set(line) <= {"-", " "} and "-" in line), 0)
    # rich draws the rule below the padding too; the gap between two columns stays empty here.
    body[at] = re.sub(r"-(?= )", " ", body[at])
    return "\n".join(line.rstrip() for line in [head, *body])


def _cell(cell: str | float | None) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, float):
        return f"{cell:.4g}"
    return shorten(clean(cell), _LONGEST_CELL)


def number_or_none(value: float | None) -> float | None:
    """None where JSON has no number for the value."""
    return float(value) if value is not None and math.isfinite(value) else None


def signed(value: float | None) -> str:
    """`+0.120`, `-0.031`, `0.000`: three decimals, and an exponent where three decimals would hide the value."""
    if (value := number_or_none(value)) is None:
        return "-"
    fixed = f"{value:+.3f}" if 0.0005 <= abs(value) < 1000 else f"{value:+.1e}"
    return fixed if value else "0.000"


def percent(share: float | None) -> str:
    """`86 %`; only 0 is printed as 0 % and only 1 as 100 %."""
    if (share := number_or_none(share)) is None:
        return "-"
    rounded = round(100 * share)
    if rounded == 100 and share < 1:
        return ">99 %"
    return "<1 %" if rounded == 0 and share > 0 else f"{rounded} %"


def counted(count: int, noun: str, plural: str = "") -> str:
    """`1 run`, `14 runs`, `1,204 runs`; `plural` where it is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def bracketed(low: float, high: float) -> str:
    """Interval as `[-0.012, +0.177]`; a dash where there is none."""
    return "-" if math.isnan(low) or math.isnan(high) else f"[{signed(low)}, {signed(high)}]"


def listed(items: Iterable[object]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *most, last = [str(item) for item in items] or [""]
    return f"{', '.join(most)} and {last}" if most else last


def slug(name: str) -> str:
    """A portable part of a file name."""
    ascii_only = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "-", ascii_only.lower()).strip("-")[:_LONGEST_SLUG].strip("-") or "unnamed"


def file_stem(*names: str) -> str:
    """A file name without a suffix, such as `bolt-mini--co2-w--co2--512x96`."""
    return "--".join(map(slug, names))


_MARKDOWN = re.compile(r"([\\`*_\[\]|~$])")
_LINE_START = re.compile(r"^(\s*\d*)([-+=#:.)])")
_MENTION = re.compile(r"(?<!\w)@(?=\w)")
_ADDRESS = re.compile(r"(?i)\b(https?|ftp|www)(?=[:.])")


def escape_markdown(text: object) -> str:
    """A sentence as Markdown text. An empty comment splits what a host would turn into a mention or a link."""
    shown = html.escape(clean(text), quote=False)
    shown = _LINE_START.sub(r"\1\\\2", _MARKDOWN.sub(r"\\\1", shown))
    return _ADDRESS.sub(r"\1<!-- -->", _MENTION.sub("@<!-- -->", shown))


def escape_csv(text: object) -> str:
    """A CSV field that a spreadsheet does not take for a formula. The CSV writer adds the quotes."""
    shown = clean(text)
    return f"'{shown}" if shown.lstrip()[:1] in ("=", "+", "-", "@", "|", "%") and shown != "-" else shown


def write_bytes(path: Path, content: bytes) -> Path:
    """Writes the file as a whole or not at all. Returns its path."""
    with atomic_write(path) as file:
        file.write(content)
    return path
