"""The one place that understands frequency strings.

GIFT-Eval's files carry the old pandas aliases (`H`, `15T`, `W-THU`), which pandas 2 warns about and pandas 3
rejects; newer files carry the new ones. Both are read here without pandas and written in the old style, as
the benchmark's own names are.
"""

import re
from dataclasses import dataclass

from hrx.errors import HrxError, unknown

# Every spelling of a base period, by the old-style letter it means. Where in its period a value is stamped
# (start or end, which weekday) does not change the season.
_SPELLINGS = {
    "S": ("S", "s"),
    "T": ("T", "min"),
    "H": ("H", "h"),
    "D": ("D",),
    "B": ("B",),
    "W": ("W",),
    "M": ("M", "ME", "MS"),
    "Q": ("Q", "QE", "QS"),
    "A": ("A", "Y", "YE", "AS", "YS"),
}
_BASE = {spelling: base for base, spellings in _SPELLINGS.items() for spelling in spellings}

# Periods per natural season, as the leaderboard (gluonts' get_seasonality) has them.
_SEASON = {"S": 3600, "T": 1440, "H": 24, "D": 1, "B": 5, "W": 1, "M": 12, "Q": 4, "A": 1}

_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_ANCHORS = {
    "W": ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN"),
    "Q": _MONTHS,
    "A": _MONTHS,
}
_PATTERN = re.compile(r"(?P<multiple>[1-9][0-9]{0,5})?(?P<spelling>[A-Za-z]+)(?:-(?P<anchor>[A-Z]{3}))?")


@dataclass(frozen=True)
class Frequency:
    """`multiple` periods of `base` between values; `name` is GIFT-Eval's own spelling: `15T`, `H`, `W`."""

    name: str
    multiple: int
    base: str


def parse(text: str) -> Frequency:
    """The frequency that `text` spells, old alias or new; an anchor (`W-THU`) is understood and dropped."""
    match = _PATTERN.fullmatch(text)
    base = _BASE.get(match["spelling"]) if match else None
    if match is None or base is None or (match["anchor"] and match["anchor"] not in _ANCHORS.get(base, ())):
        raise HrxError(unknown("frequency", text, _BASE, "A multiple may come first, as in 15T or 10S."))
    multiple = int(match["multiple"] or 1)
    return Frequency(f"{multiple}{base}" if multiple > 1 else base, multiple, base)


def is_frequency(text: str) -> bool:
    """Whether `text` spells a frequency: tells `us_births/D` from `m4_hourly` in a path."""
    try:
        parse(text)
    except HrxError:
        return False
    return True


def season(text: str) -> int:
    """Values per season: the base period's season over the multiple where that is whole, else 1."""
    frequency = parse(text)
    whole, remainder = divmod(_SEASON[frequency.base], frequency.multiple)
    return 1 if remainder else whole
