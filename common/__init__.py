"""hrx: what a forecasting checkpoint reads for each step of its forecast, and whether that reading is real."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("hrx")
except PackageNotFoundError:  # running from a source tree that was never installed
    __version__ = "0"
