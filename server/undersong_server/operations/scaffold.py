"""Begins a package with a method in it: the method's file with its plan, its test, and the entry point."""

from __future__ import annotations

import keyword
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from undersong_common import plugins
from undersong_common.errors import ConfigurationError
from undersong_server import methods

NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
TEMPLATES = Path(__file__).parent / "new_method"


@dataclass(frozen=True)
class Begun:
    """The files that were written, relative to ``folder``."""

    folder: Path
    files: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {"folder": str(self.folder), "files": list(self.files)}


def new_method(name: str, folder: Path) -> Begun:
    """Writes a package that declares the method ``name`` into ``folder``.

    Raises ConfigurationError for a name that is invalid or taken, and for a folder that holds anything.
    """
    module = name.replace("-", "_")
    if not NAME.fullmatch(name) or keyword.iskeyword(module):
        raise ConfigurationError(
            f"{name!r} cannot name a method", "use small letters, digits and hyphens, and begin with a letter"
        )
    if name in methods.own_names() or plugins.find("methods", name) is not None:
        raise ConfigurationError(f"there is a method {name!r} already", "choose another name")
    if module in sys.stdlib_module_names:
        raise ConfigurationError(f"{module!r} is a module of Python's own", "choose another name")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(f"{folder}: exists already", "choose another --out, or remove it")
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - Python and TOML are written, of a name that was checked
    )
    words = {"name": name, "module": module}
    files = {"pyproject.toml": "pyproject.toml", f"{module}.py": "method.py", f"tests/test_{module}.py": "test.py"}
    for target, template in files.items():
        path = folder / target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(environment.get_template(f"{template}.j2").render(words), encoding="utf-8")
    return Begun(folder, tuple(files))
