"""One run of many parties on this machine: its records, its folder, its processes, and how it is simulated."""
