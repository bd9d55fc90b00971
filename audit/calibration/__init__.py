"""The instrument against constructed ground truth: generators whose answer is known, models trained on them, metrics.

`hrx.audit.calibration.results` and everything that only reads results do without torch.
"""
