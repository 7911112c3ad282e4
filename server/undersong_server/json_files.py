"""JSON files that commands and the serving process exchange: each is replaced whole, so that both may be killed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from undersong_common.errors import ConfigurationError
from undersong_common.files import replace_file


def read_json(path: Path) -> dict[str, Any] | None:
    """None where the file is missing. Raises ConfigurationError for a damaged one."""
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        raise ConfigurationError(f"{path}: is not JSON", "restore it from a backup") from None
    return value


def replace_json(path: Path, value: Mapping[str, Any], *, durable: bool) -> None:
    """Replaces a file whole; ``durable``: it is on the disk when this returns."""
    replace_file(path, json.dumps(value, indent=1).encode("utf-8"), durable=durable)
