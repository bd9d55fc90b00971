"""The instrument against constructed ground truth: generators with a known answer, models trained on them, metrics.

`hrx.audit.calibration.generators` and `hrx.records.calibration` do not import torch.
"""
