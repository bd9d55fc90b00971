"""HTML: pages that open from disk, tables and notebooks, from the Jinja2 templates in `templates/`.

A page is one file with scripts, styles and data inside, and no network access; a large report has data beside it. Three
layers keep a hostile name harmless: the templates clean and escape every text, data is JSON without any `<`, and the
page's content security policy runs only the scripts and styles with the hashes, or the nonce, that it lists.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from markupsafe import Markup

from hrx import __version__
from hrx.reports import text
from hrx.reports.statistics import FEW_TEXT, is_few
from hrx.reports.text import clean

if TYPE_CHECKING:
    from jinja2 import Environment

_ASSETS = files("hrx.reports.page")
STYLES = ("heatmap.css", "page.css")
HEATMAP_SCRIPTS = ("core.js", "heatmap.js", "heatdraw.js", "heatsave.js")
"""Heat map, which a notebook shows too."""
_FILTERS = ("bracketed", "clean", "counted", "listed", "percent", "signed")


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        loader=FunctionLoader(lambda name: asset(f"templates/{name}")),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else clean(value),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {name: getattr(text, name) for name in _FILTERS}
    environment.filters["short"] = lambda name, width=60: text.shorten(clean(name), width)
    environment.globals |= {"link": link, "asset": lambda name: Markup(asset(name)), "few": FEW_TEXT, "is_few": is_few}
    return environment


def render(template: str, /, **values: Any) -> str:
    """Template with these values, each cleaned and escaped unless it is `Markup`."""
    return _environment().get_template(template).render(values)


def render_macro(template: str, macro: str, *values: Any) -> Markup:
    """A macro of a template, called with these values."""
    return Markup(getattr(_environment().get_template(template).module, macro)(*values))


def render_page(
    template: str, scripts: Sequence[str], data: Mapping[str, object], /, *, nonce: str = "", **values: Any
) -> str:
    """A whole page: a template that extends `frame.html`, with `data` for the scripts by the name of its element.

    The frame takes `title`, `kicker`, `heading`, `facts` and `footer`. Scripts beside the page run by the `nonce`.
    """
    embedded = Markup("\n").join(Markup(embed(name, value)) for name, value in data.items())
    style, script = (Markup("\n".join(map(asset, names))) for names in (STYLES, scripts))
    allowed = f"{_hash(script)} 'nonce-{nonce}'" if nonce else _hash(script)
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    frame = {"policy": Markup(policy), "style": style, "script": script, "data": embedded, "nonce": nonce}
    return render(template, **(frame | values))


def link(**where: object) -> str:
    """Address, within the page, of the runs that pass these filters; `at` is the section to scroll to."""
    return "#" + "&".join(f"{name}={quote(clean(value), safe='')}" for name, value in where.items())


def to_json(value: object) -> str:
    """JSON that cannot close its element, and that a script can hold as it is."""
    data = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    # Escapes with the same meaning in JSON, and none in HTML.
    return data.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def embed(name: str, value: object) -> str:
    """Data for the page's script."""
    return f'<script type="application/json" id="{name}">{to_json(value)}</script>'


def made_by(source: str = "") -> str:
    """Footer of a page."""
    return f"Made by hrx {__version__} on {datetime.now(UTC):%Y-%m-%d %H:%M} UTC{source}."


def asset(name: str) -> str:
    """Text of a script, style sheet or template."""
    return _ASSETS.joinpath(name).read_text(encoding="utf-8")


def _hash(source: str) -> str:
    digest = hashlib.sha256(source.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
