"""DP-SGD as centralised references of ``undersong compare`` (../README.md)."""
