"""What the papers state, as data: ../papers/METHOD.toml, one file per method, holds a paper's elements and tables.

An element is a step or setting of the paper's method, with the options that reproduce it. ``preset = NAME`` in [method]
sets the options of the file's elements. The documents' pages on the papers are written from the same files.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from undersong_server.methods.interface import MethodOptions, Privacy

PAPER = "paper"  # the preset that every file has
NOT_PRIVATE = {  # keys of an element that is no private step of a federation, and what they say of it
    "curator": "private with one curator only, as the paper assumes",
    "not_private": "by our reading not private as the paper states",
}
FILES = resources.files("undersong_server.methods").joinpath("papers")


class PresetOptions(MethodOptions):
    """Shared by the paper methods: their [method] keys, and the preset that sets them as the paper has them.

    Attributes:
        preset: "paper" (or another preset of the method's file) takes every value as the paper has it; keys that are
            given beside it win. "" takes the product's defaults.
    """

    method: ClassVar[str]
    preset: str = ""

    @model_validator(mode="before")
    @classmethod
    def _with_preset(cls, method_keys: Any) -> Any:
        preset = method_keys.get("preset") if isinstance(method_keys, Mapping) else None
        if preset and isinstance(preset, str):  # The field itself refuses a preset that is no text.
            return {**sections(cls.method, preset)["method"], **method_keys}
        return method_keys


class StatedOptions(PresetOptions):
    """Shared by the paper methods some of whose steps are less private than their paper states: their [method] keys.

    Attributes:
        stated_epsilon: epsilon from which the paper's noise is computed where a preset has such steps: the task's
            [privacy] epsilon is moved here, and the run promises none (undersong_server/runs/task.py). None adds none.
    """

    stated_epsilon: Annotated[float, Field(gt=0)] | None = None

    def stated(self, privacy: Privacy) -> Privacy:
        """The promise that the paper's own accounting states: the task's, with ``stated_epsilon`` if that is set."""
        return replace(privacy, epsilon=self.stated_epsilon or privacy.epsilon)


@cache
def table(method: str) -> Mapping[str, Any]:
    """The contents of ../papers/METHOD.toml; empty if the method follows no paper."""
    file = FILES.joinpath(f"{method}.toml")
    if file.is_file():
        return tomllib.loads(file.read_text(encoding="utf-8"))
    return {}


def elements(method: str, preset: str) -> list[Mapping[str, Any]]:
    """The elements of a preset. Raises ValueError that lists the method's presets if there is no such one."""
    element_rows = table(method).get("elements", [])
    preset_names = {preset_name for row in element_rows for preset_name in row.get("presets", [PAPER])}
    if preset not in preset_names:
        raise ValueError(
            f"{method} has no preset {preset!r}; choose one of {', '.join(sorted(preset_names)) or 'none'}"
        )
    return [row for row in element_rows if preset in row.get("presets", [PAPER])]


def sections(method: str, preset: str) -> dict[str, dict[str, Any]]:
    """Task-file keys that a preset sets, by section; [method] is always present."""
    options_by_section: dict[str, dict[str, Any]] = {"method": {}}
    for row in elements(method, preset):
        for option_key, option_value in row.get("set", {}).items():
            section, _, option_name = option_key.partition(".")
            options_by_section.setdefault(section, {})[option_name] = option_value
    return options_by_section


def forbidden(method: str, preset: str) -> list[str]:
    """Returns which of a preset's elements are not private in a federation, with the reason; a daemon refuses them."""
    element_rows = elements(method, preset) if preset else []
    return [
        f"{statement}: {row[element_key]}"
        for row in element_rows
        for element_key, statement in NOT_PRIVATE.items()
        if element_key in row
    ]
