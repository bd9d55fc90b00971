"""What all pictures share: colours that everyone can tell apart, a plain style, and files that are never half written.

matplotlib is imported when a picture is drawn, without pyplot: no window system is asked for, and no state of the
caller's is touched.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hrx.errors import HrxError
from hrx.reports.files import write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
INK, FORECAST, TRUTH, GUIDE = "#222222", "#D55E00", "#0072B2", "#888888"  # Okabe and Ito: told apart by everyone
_TIMELESS: dict[str, dict[str, None]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}
"""What a format would write of the time that made it: without it, the same picture is the same bytes."""


class PictureError(HrxError):
    """A picture that cannot be written."""


@contextmanager
def plain_style() -> Iterator[None]:
    """matplotlib's own defaults, whatever is in the user's matplotlibrc, and the same bytes every time."""
    from matplotlib import style

    with warnings.catch_warnings(), style.context(["default", {"svg.hashsalt": "hrx", "pdf.fonttype": 42}]):
        # A letter that the font lacks is drawn as a box; that is no news for the person at the terminal.
        warnings.filterwarnings("ignore", message=".*[Gg]lyph.*")
        yield


def check_format(path: Path) -> None:
    """Refuses a suffix that names no format of a picture."""
    if path.suffix.lower() not in FORMATS:
        raise PictureError(f"{path} has the suffix {path.suffix!r}. A picture is {' or '.join(FORMATS)}.")


def save(figure: Figure, path: Path) -> Path:
    """Writes a figure in the format of the path's suffix."""
    kind = path.suffix.lower()
    held = io.BytesIO()
    figure.savefig(held, format=kind[1:], metadata=_TIMELESS[kind])
    return write_bytes(path, held.getvalue())
