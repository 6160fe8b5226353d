"""Statistics on arrays of numbers: intervals and tests, decisions over pairs, change points in a series."""
