"""The operator's own words about runs: a note, tags, marks on published texts. No party and no receiver sees them."""

import contextlib
import re
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from undersong_common.errors import ConfigurationError
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.operations import releases
from undersong_server.runs.folder import Annotations, UnreadableRun

LONGEST_NOTE = 4_000  # characters
LONGEST_TAG = 40  # characters
MOST_TAGS = 20
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# Two clicks on one page are two threads. Each reads the file and writes it anew: without a lock one change is lost.
_WRITE_LOCK = threading.Lock()


def show(home: Path, run: str) -> Annotations:
    """Reads note, tags and marks of a run. Raises ConfigurationError for an unknown run."""
    run_folder = CoordinatorHome(home).run(run)
    run_folder.status()
    return run_folder.annotations()


def describe(home: Path, run: str, *, note: str | None = None, tags: Iterable[str] | None = None) -> Annotations:
    """Replaces a run's note, its tags, or both; None leaves one as it is. Equal tags in other case are one.

    Raises ConfigurationError for an unknown run, and for words that are too long or no plain text.
    """
    with _WRITE_LOCK:
        run_annotations = show(home, run)
        if note is not None:
            note_text = note.replace("\r\n", "\n").strip()
            if len(note_text) > LONGEST_NOTE or _CONTROLS.search(note_text):
                raise ConfigurationError(
                    "the note is too long, or holds control characters",
                    f"write at most {LONGEST_NOTE:,} visible characters",
                )
            run_annotations = replace(run_annotations, note=note_text)
        if tags is not None:
            run_annotations = replace(run_annotations, tags=_checked_tags(tags))
        CoordinatorHome(home).run(run).annotate(run_annotations)
    return run_annotations


def _checked_tags(tags: Iterable[str]) -> tuple[str, ...]:
    tag_words = [" ".join(tag.split()) for tag in tags]
    tag_by_folding = {word.casefold(): word for word in reversed(tag_words) if word}
    unfit_tags = [
        word for word in tag_by_folding.values() if len(word) > LONGEST_TAG or "," in word or _CONTROLS.search(word)
    ]
    if unfit_tags or len(tag_by_folding) > MOST_TAGS:
        raise ConfigurationError(
            "a tag is too long or has a control character, or there are too many tags",
            f"write at most {MOST_TAGS} tags of at most {LONGEST_TAG} characters, with commas between them",
        )
    return tuple(sorted(tag_by_folding.values(), key=str.casefold))


def mark_texts(home: Path, run: str, row_numbers: Iterable[int], *, marked: bool = True) -> Annotations:
    """Marks published texts of a finished run by their rows, from 1, or takes their marks away.

    Raises ConfigurationError for a run that has not finished, and for a row that its corpus does not have.
    """
    named_numbers = set(row_numbers)
    text_count = releases.count_texts(home, run)
    if unknown_numbers := sorted(row_number for row_number in named_numbers if not 1 <= row_number <= text_count):
        raise ConfigurationError(
            f"run {run!r} has no text {unknown_numbers[0]}",
            f"its texts have the numbers 1 to {text_count:,}",
            code="no-text",
        )
    with _WRITE_LOCK:
        run_annotations = show(home, run)
        marked_before = set(run_annotations.marked)
        marked_after = marked_before | named_numbers if marked else marked_before - named_numbers
        if marked_after != marked_before:  # What was downloaded has other texts than what is marked now.
            run_annotations = replace(run_annotations, marked=tuple(sorted(marked_after)), downloaded_at=0.0)
        CoordinatorHome(home).run(run).annotate(run_annotations)
    return run_annotations


def note_download(home: Path, run: str) -> None:
    """Notes that an operator has taken a finished run's files; nothing if the run's notes cannot be read."""
    with _WRITE_LOCK, contextlib.suppress(UnreadableRun):
        run_annotations = replace(show(home, run), downloaded_at=time.time())
        CoordinatorHome(home).run(run).annotate(run_annotations)
