"""The embeddings of the simulation's tests, which need no model."""

from tests.simulation.conftest import embedded_by

__all__ = ["embedded_by"]
