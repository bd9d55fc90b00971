"""Series and where they come from: sources of datasets, series without gaps, and standardised windows.

This package does not depend on models or audits.
"""

from .series import DamagedDataset, Dataset, MultivariateSeries, Series, UnusableSeries, fill, spaced
from .sources import data_root, open_series, open_source, read_series
from .windows import Windows, admits, cut, cut_region, refuse_extreme, refuse_missing

__all__ = [
    "DamagedDataset",
    "Dataset",
    "MultivariateSeries",
    "Series",
    "UnusableSeries",
    "Windows",
    "admits",
    "cut",
    "cut_region",
    "data_root",
    "fill",
    "open_series",
    "open_source",
    "read_series",
    "refuse_extreme",
    "refuse_missing",
    "spaced",
]
