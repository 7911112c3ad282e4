"""The heads that a task model can have."""

from __future__ import annotations

from typing import Literal

Head = Literal["auto", "linear", "mlp", "three-layer"]
HEADS: tuple[Head, ...] = ("auto", "linear", "mlp", "three-layer")
