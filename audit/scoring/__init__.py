"""How good an explanation is: deletion sweep, quantities, rank, naive baselines."""
