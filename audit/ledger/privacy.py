"""Sentences without the places of this machine: records are published, and a path tells who made them and where."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

# How an absolute path of either kind of system begins, or one from the home or the working directory; not `https://`.
_START = r"(?:[A-Za-z]:\\|file://|~[\w.-]*/|\.{1,2}/|/(?!/))"
# Between quotation marks a path may hold spaces.
_QUOTED = rf"""(?<=')(?:{_START}[^'\n]+)(?=')|(?<=")(?:{_START}[^"\n]+)(?=")"""
_PATH = re.compile(rf"""{_QUOTED}|(?<![\w/.]){_START}[^\s'"<>|:,;()]+""")


def scrubbed(text: str) -> str:
    """The text with every path reduced to its last name; hub ids and dataset names (`owner/name`) stay."""
    for place in _places():
        # Places of this machine first: they may hold spaces, where a pattern would stop.
        text = text.replace(f"{place}/", "./").replace(place, ".")
    return _PATH.sub(lambda found: _last(found.group()), text)


def _places() -> list[str]:
    """Directories of this machine that errors speak of, longest first."""
    found = {Path.cwd(), Path.home(), Path(tempfile.gettempdir()), Path(sys.prefix), Path(__file__).parent.parent}
    return sorted((str(path) for path in found if len(path.parts) > 1), key=len, reverse=True)


def _last(path: str) -> str:
    stripped = path.rstrip("/\\.")
    return re.split(r"[/\\]", stripped)[-1] + path[len(stripped) :].replace("/", "").replace("\\", "")
