"""Pages that open from disk: one file each, with scripts, styles and data inside, and no network access.

Three layers keep a hostile name harmless: text is escaped where Python writes it, data is JSON without any `<`, and the
page's content security policy runs only the scripts and styles with the hashes that it lists.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from string import Template
from typing import NamedTuple
from urllib.parse import quote

from hrx import __version__
from hrx.reports.text import clean, escape_html

_ASSETS = files("hrx.reports.page")
STYLES = ("heatmap.css", "page.css")
HEATMAP_SCRIPTS = ("core.js", "heatmap.js", "heatdraw.js", "heatsave.js")
"""The heat map, which a notebook shows too."""


def link(**where: object) -> str:
    """The address, within the page, of the runs that pass these filters; `at` is the section to scroll to."""
    return "#" + "&amp;".join(f"{name}={quote(clean(value), safe='')}" for name, value in where.items())


def embed(name: str, value: object) -> str:
    """Data for the page's script: JSON that cannot close its element."""
    data = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    # Escapes with the same meaning in JSON, and none in HTML.
    safe = data.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return f'<script type="application/json" id="{name}">{safe}</script>'


class Row(NamedTuple):
    """A row of a table: its cells as HTML, and attributes that the page's script reads."""

    cells: Sequence[str]
    attributes: Mapping[str, str] = {}


def html_table(
    heads: Sequence[tuple[str, str]], rows: Iterable[Row], *, label: str, kind: str = "", id: str = ""
) -> str:
    """A table with a class for each column. `label` names it for screen readers; one with an `id` can be saved."""
    head = "".join(f'<th scope="col" class="{cls}">{title}</th>' for title, cls in heads)
    body = "".join(
        f"<tr{_attributes(row.attributes)}>"
        + "".join(f'<td class="{cls}">{cell}</td>' for cell, (_, cls) in zip(row.cells, heads, strict=True))
        + "</tr>"
        for row in rows
    )
    named = f' id="{id}"' if id else ""
    table = f'<table class="data {kind}"{named}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    save = f'<p class="save"><button type="button" class="quiet" data-csv="{id}">Save as CSV</button></p>' if id else ""
    return f'<div class="wide" tabindex="0" role="region" aria-label="{escape_html(label)}">{table}</div>{save}'


def _attributes(values: Mapping[str, str]) -> str:
    return "".join(f' {name}="{escape_html(value)}"' for name, value in values.items())


def fact_list(facts: Mapping[str, object]) -> str:
    """Names and their values; the names are HTML already."""
    return f'<dl class="record">{"".join(f"<dt>{k}</dt><dd>{escape_html(v)}</dd>" for k, v in facts.items())}</dl>'


def made_by(source: str = "") -> str:
    """The footer of a page."""
    return f"Made by hrx {__version__} on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC{source}."


def fill_page(template: str, scripts: Sequence[str], parts: Mapping[str, str]) -> str:
    """The whole page: the template of its body and the frame around it, with `parts` that are HTML already.

    The frame takes `title`, `kicker`, `heading`, `facts`, `footer`, and `data` for the scripts where there are some.
    """
    style = "\n".join(map(asset, STYLES))
    script = "\n".join(map(asset, scripts))
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    body = Template(asset(template)).substitute(parts)
    page = {"data": "", **parts, "policy": policy, "style": style, "body": body, "script": script}
    return Template(asset("frame.html")).substitute(page)


def asset(name: str) -> str:
    """The text of a script, style sheet or template."""
    return _ASSETS.joinpath(name).read_text(encoding="utf-8")


def _hash(source: str) -> str:
    digest = hashlib.sha256(source.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
