"""Where a coordinator keeps registry, journals and runs: in files of its own, or in a database of many machines."""
