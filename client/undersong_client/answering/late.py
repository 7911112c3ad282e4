"""What is opened when it is first needed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Late:
    """Stands for a value that is made when something of it is first used."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._lock = threading.RLock()
        self._value: list[Any] = []

    def __repr__(self) -> str:
        return "Late(hidden)"

    @property
    def made(self) -> bool:
        return bool(self._value)

    def __call__(self, *arguments: Any) -> Any:
        return self._get()(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._get(), name)

    def _get(self) -> Any:
        with self._lock:
            if not self._value:
                self._value.append(self._make())
            return self._value[0]
