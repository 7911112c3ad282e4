"""Privacy: what a release costs (accounting), how it is blurred (noise) and what was spent (ledger)."""
