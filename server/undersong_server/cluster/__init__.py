"""Work spread over the machines of a Ray cluster, or over this machine's cores by Ray, which places and restarts it."""
