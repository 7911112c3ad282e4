"""Databases that hold a coordinator's registry, journals and runs: files of its own, or one of many machines."""
