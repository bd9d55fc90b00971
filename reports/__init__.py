"""Records → people: a ledger as a frame, what it says about each model, in words, tables and pictures.

Reads records only: never a model, never a series, and so never torch.
"""

from hrx.reports.compare import compare
from hrx.reports.heatmap import heatmaps
from hrx.reports.page import write_report
from hrx.reports.read import read
from hrx.reports.summary import summarise
from hrx.reports.table import Table
from hrx.reports.tables import tables
from hrx.reports.text import render, render_table

__all__ = ["Table", "compare", "heatmaps", "read", "render", "render_table", "summarise", "tables", "write_report"]
