"""Models that are recognised and cannot be audited."""

from hrx.adapters.families import Family

SUNDIAL = Family(
    "Sundial",
    architectures=("SundialForPrediction",),
    refusal="samples its forecast, so the forecast has no input gradient",
)
TABPFN_TS = Family(
    "TabPFN-TS",
    files="tabpfn-*.ckpt",
    refusal="fits a tabular regression on each window and forecasts from calendar features, and its differentiable "
    "mode is not its official forecast",
)
