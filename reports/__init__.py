"""Records → people: a ledger as a frame, and what it shows about each model as text, tables, figures and a page.

Reads records only: never a model, never a series, and so never torch.
"""

from hrx.reports.audit_summary import AuditSummary, render
from hrx.reports.compare import compare
from hrx.reports.heatmap import heatmaps
from hrx.reports.page.report import write_report
from hrx.reports.runs import read
from hrx.reports.summary import summarise
from hrx.reports.table import ReportTable
from hrx.reports.tables import tables
from hrx.reports.text import render_table

__all__ = [
    "AuditSummary", "ReportTable", "compare", "heatmaps", "read", "render", "render_table", "summarise", "tables",
    "write_report",
]  # fmt: skip
