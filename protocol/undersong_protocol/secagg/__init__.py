"""Secure aggregation: sans-IO state machines and the primitives beneath them."""
