"""Needs of every program while it runs: start, settings, extras, logs, notices, terminal, its machine."""
