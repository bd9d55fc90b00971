"""Models that are not a checkpoint of a family: saved directories, runs of a checkout, modules and callables."""
