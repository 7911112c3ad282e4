"""What every program of ours needs while it runs: start, settings, extras, logs, notices, terminal, its machine."""
