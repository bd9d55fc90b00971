"""One file that needs nothing beside it: a template filled with safe text, its scripts and styles inside.

Three layers keep a hostile name inert: text is escaped where Python writes it, data is JSON in which no `<` is left,
and the page's policy lets only the scripts and styles run whose hashes it lists.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from string import Template
from urllib.parse import quote

from hrx.reports.layout import clean

_ASSETS = files("hrx.reports.page")


def text(value: object) -> str:
    """Any value as text of a page, on one line and without anything that a browser would obey."""
    return html.escape(clean(value))


def link(**where: object) -> str:
    """The address, within the page, of the runs that these filters leave; `at` is the part that it scrolls to."""
    return "#" + "&amp;".join(f"{name}={quote(clean(value), safe='')}" for name, value in where.items())


def embed(name: str, value: object) -> str:
    """Data for the page's script: JSON that cannot end the element that it stands in."""
    told = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    # Escapes that mean the same to a JSON reader, and nothing to an HTML reader.
    safe = told.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return f'<script type="application/json" id="{name}">{safe}</script>'


def page(template: str, scripts: Sequence[str], parts: Mapping[str, str]) -> str:
    """The whole page: a template with its `parts`, of which each is HTML already."""
    style = _asset("page.css")
    script = "\n".join(map(_asset, scripts))
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    body = Template(_asset(template)).substitute(parts)
    return Template(_asset("frame.html")).substitute(
        policy=policy, title=parts["title"], style=style, body=body, script=script
    )


def _asset(name: str) -> str:
    return _ASSETS.joinpath(name).read_text(encoding="utf-8")


def _hash(source: str) -> str:
    digest = hashlib.sha256(source.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
