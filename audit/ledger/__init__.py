"""Records and the SQLite file that holds them. Needs no torch."""
