"""Benchmarks: ``python -m benchmarks.NAME [--quick] [--json]``; each prints ratios measured in one run."""
