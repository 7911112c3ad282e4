"""The card of an archive: the published card with the archive's own files, and its own counts if texts are left out.

A run keeps its card as text, without the figures that it was made of. So its parts are replaced where they stand, and a
part that counts texts which the archive lacks says so.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from undersong_common.printable import counted, joined
from undersong_server.report.answers import IN_BROWSER
from undersong_server.report.before_training import BEFORE
from undersong_server.report.html import FILES, REPORT, count_table, escape_markdown, hub_size
from undersong_server.report.rows import EXAMPLES, TITLE
from undersong_server.report.sum_answers import WORTH
from undersong_server.report.writers import WRITERS

COUNTING_PARTS = (
    WORTH,
    BEFORE,
    WRITERS,
    TITLE,
    "How it was made",
)  # parts of a card that count the texts of a whole run
PARAGRAPHS_OF_FILES = {  # file by the start of a paragraph, which is dropped where the archive lacks the file
    IN_BROWSER: REPORT,
    EXAMPLES: REPORT,
}
OPENING = re.compile(r"^(## What it is\n\n)[\d,]+ ((?:synthetic )?)texts?\b", re.MULTILINE)
SIZE = re.compile(r"^size_categories: .*$", re.MULTILINE)
COUNTS = re.compile(r"^\| label \|.*\n\|---\|---:.*\n(?:\|.*\n)*", re.MULTILINE)
FILE_NAME = r"(?<![\w.-]){}(?![\w-])"


def list_files(card: str, files: Sequence[tuple[str, str]]) -> str:
    """Returns a card whose list of files has exactly ``files``, each a name and what the file is for."""
    section = f"## {FILES}\n\n" + "".join(f"- {name}: {escape_markdown(purpose)}\n" for name, purpose in files)
    pattern = re.compile(rf"^## {FILES}\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    if pattern.search(card):
        return pattern.sub(lambda _match: f"{section}\n", card).rstrip("\n") + "\n"
    trimmed_card = card.rstrip("\n")
    return f"{trimmed_card}\n\n{section}"


def count_anew(card: str, rows: Sequence[Mapping[str, Any]], remaining: Sequence[int]) -> str:
    """Returns a card with the counts of the remaining texts, and with a remark where it counts all that were published.

    Args:
        rows: the published rows; remaining: indices of those that the archive has, from 0.
    """
    missing_count = len(rows) - len(remaining)
    remark = f"> Counted before the makers left out {missing_count:,} of {counted(len(rows), 'text')}.\n"
    note = (
        f"> This archive has {counted(len(remaining), 'text')}. Its makers left out {missing_count:,} of {len(rows):,}"
        " after the run. A part that counts the texts as they were before says so.\n"
    )
    labels, generators = (list(dict.fromkeys(str(row.get(key, "")) for row in rows)) for key in ("label", "generator"))
    count_by_cell = Counter(
        (str(rows[place].get("label", "")), str(rows[place].get("generator", ""))) for place in remaining
    )
    count_rows = [[count_by_cell[label, generator_name] for generator_name in generators] for label in labels]
    header, header_separator, body = card.partition("\n---\n") if card.startswith("---\n") else ("", "", card)
    header = SIZE.sub(f'size_categories: ["{hub_size(len(remaining))}"]', header)
    body = OPENING.sub(lambda match: f"{match[1]}{counted(len(remaining), f'{match[2]}text')}", body)
    body = COUNTS.sub(lambda _match: count_table(labels, generators, count_rows), body, count=1)
    for title in COUNTING_PARTS:
        body = re.sub(rf"^(##+ {re.escape(title)}\n)", lambda match: f"{match[1]}\n{remark}", body, flags=re.MULTILINE)
    return f"{header}{header_separator}\n{note}\n{body.lstrip()}"


def leave_out_other_files(card: str, named: Sequence[str], present: Sequence[str]) -> str:
    """Returns a card without the paragraphs on files that an archive lacks, and a remark on those that it still names.

    Args:
        named: names of all files that a card may mention; present: names of those in the archive.
    """
    dropped_starts = tuple(start for start, name in PARAGRAPHS_OF_FILES.items() if name not in present)
    lines = [line for line in card.split("\n") if not line.startswith(dropped_starts)]
    shorter_card = re.sub(r"\n{3,}", "\n\n", "\n".join(lines))
    absent_names = [name for name in named if name not in present]
    still_named = [name for name in absent_names if re.search(FILE_NAME.format(re.escape(name)), shorter_card)]
    if not still_named:
        return shorter_card
    return f"{shorter_card.rstrip()}\n\nThis archive lacks {joined(still_named)}, which the text above names.\n"
