"""Records → people: a ledger as a frame, what it says about each model, in words and pictures.

Reads records only: never a model, never a series, and so never torch.
"""

from hrx.reports.heatmap import heatmaps
from hrx.reports.read import read
from hrx.reports.summary import summarise
from hrx.reports.text import render, render_table

__all__ = ["heatmaps", "read", "render", "render_table", "summarise"]
