"""Benchmarks: ``python -m benchmarks.NAME [--quick] [--json]`` runs one, which prints figures of that run."""
