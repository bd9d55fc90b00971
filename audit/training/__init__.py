"""Training of backbones on the official splits of a benchmark, before they are audited like any checkpoint."""
