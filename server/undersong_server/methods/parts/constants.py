"""Constants of a method: a frozen dataclass whose fields state a unit and a reason, printed as a table."""

from dataclasses import field, fields
from typing import Any


def constant(value: Any, unit: str, reason: str) -> Any:
    """Returns a dataclass field with this default, its unit and the reason for it."""
    return field(default=value, metadata={"unit": unit, "reason": reason})


def table(constants: type[Any]) -> str:
    """Returns the constants of a class as a Markdown table."""
    rows = (
        f"| `{each.name}` | {each.default:g} | {each.metadata['unit']} | {each.metadata['reason']} |"
        for each in fields(constants)
    )
    return "\n".join(["| constant | value | unit | reason |", "|---|---|---|---|", *rows])
