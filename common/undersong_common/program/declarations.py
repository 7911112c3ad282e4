"""Declares a field of a frozen class as an option; this file loads no command line."""

from typing import Any


class Option(dict[str, Any]):
    """Declaration of a dataclass field as a command-line option: the arguments of ``typer.Option`` by name.

    It may also hold ``name``, ``type`` and ``default`` if they differ from the field's, and ``each``, the type of the
    parts of a comma-separated list.
    """
