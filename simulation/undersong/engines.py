"""What carries the messages of a simulation."""

from __future__ import annotations

from typing import Literal, get_args

from undersong_common.errors import ConfigurationError

Engine = Literal["inprocess", "flower"]  # parties in this process, or Flower's simulation engine (on Ray)


def check_engine(engine: str) -> None:
    """Raises ConfigurationError for an engine that there is not."""
    if engine not in get_args(Engine):
        raise ConfigurationError(f"engine: there is no {engine!r}", f"choose {' or '.join(get_args(Engine))}")
