"""Pages that people look at: one file each, which opens from disk and asks no network for anything."""

from hrx.reports.page.build import Report, write_report

__all__ = ["Report", "write_report"]
