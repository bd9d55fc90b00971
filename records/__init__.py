"""What an audit leaves behind, as plain data, and the ledger that keeps it. Needs no torch."""
