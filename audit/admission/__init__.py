"""Whether a checkpoint may be audited: the checks, and their stored results."""
