"""Secure aggregation: state machines without I/O, and the cryptographic primitives that they use."""
