"""What carries the messages of a simulation."""

from __future__ import annotations

from typing import Literal

Engine = Literal["inprocess", "flower"]  # parties in this process, or Flower's simulation engine (on Ray)
