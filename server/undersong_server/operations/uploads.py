"""Files of texts that people upload to the console, and the folder that keeps those which a task names."""

import itertools
import re
from pathlib import Path

from undersong_common.errors import ConfigurationError
from undersong_common.files import replace_file
from undersong_common.printable import printable
from undersong_common.text.row_files import SUFFIXES
from undersong_server.operations.coordinator import console_folder

LONGEST_STEM = 80  # characters of an uploaded file's name before its ending
_FORBIDDEN_SIGNS = re.compile(r"[^\w.-]+")


def uploads_folder(home: Path) -> Path:
    """The console's own folder of files that tasks name: uploaded there, or copied by the operator."""
    return console_folder(home).absolute() / "uploads"


def make_folder(home: Path) -> Path:
    """Makes the folder of uploads if it is not there, and returns it."""
    folder = uploads_folder(home)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def table_name(name: str) -> tuple[str, str]:
    """Returns the name of an uploaded table without its sender's folders, and its ending.

    Raises ConfigurationError (code "no-table") for an ending that no table has.
    """
    file_name = name.replace("\\", "/").rpartition("/")[2].strip() or "test.jsonl"
    endings = [f"{suffix}{compression_suffix}" for suffix in SUFFIXES for compression_suffix in ("", ".gz")]
    file_ending = next((suffix for suffix in endings if file_name.casefold().endswith(suffix)), None)
    if file_ending is None:
        raise ConfigurationError(
            f"{printable(file_name, 100)}: is no table",
            f"upload a file that ends in {', '.join(SUFFIXES)}",
            code="no-table",
        )
    return file_name, file_ending


def keep_upload(home: Path, name: str, content: bytes) -> Path:
    """Writes an uploaded table into the folder of uploads, and returns its path.

    No file there is ever replaced, since runs may read it: other content of the same name gets a number. The name has
    letters, digits, dots and hyphens alone, and no dot at its begin. Raises ConfigurationError for another file.
    """
    file_name, ending = table_name(name)
    stem = _FORBIDDEN_SIGNS.sub("_", file_name[: -len(ending)]).lstrip(".")[:LONGEST_STEM] or "texts"
    folder = make_folder(home)
    number_suffixes = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
    paths = (folder / f"{stem}{number}{ending}" for number in number_suffixes)
    path = next(path for path in paths if not path.exists() or path.read_bytes() == content)
    if not path.exists():
        replace_file(path, content)
    return path
