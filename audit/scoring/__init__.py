"""How good an explanation is: orderings, deletion, quantities, rank, naive baselines."""
