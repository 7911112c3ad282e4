"""Audits: attacks on real runs with planted records, and what epsilon the attacks prove."""
