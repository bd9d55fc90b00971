"""Where series come from: sources of datasets, series without gaps, and standardised windows.

This room knows nothing of models or audits.
"""

from .series import DamagedDataset, Dataset, Series, UnusableSeries, fill, spaced
from .sources import open_source
from .windows import Windows, admits, cut

__all__ = [
    "DamagedDataset",
    "Dataset",
    "Series",
    "UnusableSeries",
    "Windows",
    "admits",
    "cut",
    "fill",
    "open_source",
    "spaced",
]
