"""Privacy: the cost of releases (accounting), their noise (noise), and the record of what was spent (ledger)."""
