"""Constants of a method: a frozen dataclass whose fields state a unit and a reason, printed as a table."""

from dataclasses import field, fields
from typing import Any


def constant(value: Any, unit: str, reason: str) -> Any:
    """Returns a dataclass field with this default, its unit and the reason for it."""
    return field(default=value, metadata={"unit": unit, "reason": reason})


def table(constants: type[Any]) -> str:
    """Returns the constants of a class as a Markdown table."""
    constant_rows = (
        f"| `{constant.name}` | {constant.default:g} | {constant.metadata['unit']} | {constant.metadata['reason']} |"
        for constant in fields(constants)
    )
    return "\n".join(["| constant | value | unit | reason |", "|---|---|---|---|", *constant_rows])
