"""Constants of a method: a frozen dataclass whose fields state a unit and a reason, printed as a table."""

from dataclasses import field, fields
from typing import Any


def constant(value: Any, unit: str, reason: str) -> Any:
    """Returns a dataclass field with this default, its unit and the reason for it."""
    return field(default=value, metadata={"unit": unit, "reason": reason})


def table(constants: type[Any], *columns: str) -> str:
    """Returns the constants of a class as a Markdown table. ``columns``: of "unit" and "reason", those to show."""
    heading, rule = " | ".join(["constant", "value", *columns]), "---|" * (2 + len(columns))
    constant_rows = (
        " | ".join([f"`{constant.name}`", f"{constant.default:g}", *map(constant.metadata.__getitem__, columns)])
        for constant in fields(constants)
    )
    return "\n".join([f"| {heading} |", f"|{rule}", *(f"| {row} |" for row in constant_rows)])
