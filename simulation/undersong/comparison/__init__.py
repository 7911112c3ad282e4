"""Comparisons of many runs: their grid, each cell of it, the table of them, and centralised references."""
