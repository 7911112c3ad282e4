"""Programs that write, check and release what this repository holds."""
