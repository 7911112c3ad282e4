"""Models trained by DP-SGD on all records at one place, as references of ``undersong compare`` (../README.md)."""
