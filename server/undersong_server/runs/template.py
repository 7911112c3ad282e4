"""The commented task file that ``undersong init`` writes."""

from __future__ import annotations

import json
from pathlib import Path

from undersong_common.configuration import nearest
from undersong_common.errors import ConfigurationError
from undersong_common.table import UTF_8, column_names, read_table

LARGEST_LABEL_COUNT = 100

TEMPLATE = """\
# A task file of Undersong. Check it with `undersong plan`, run it with `undersong simulate`.

[task]                      # everything in this section is public: it goes to the model provider
name = {name}
description = "a short text"  # what one text is, e.g. "a nurse's triage note"
labels = {labels}
# purpose = ""              # why; the people who approve the run read it

[data]                      # a simulation's private records; paths are relative to this file
path = {path}
text = {text}               # column with the text
label = {label}             # column with the label
{user}          # column with the user's id, needed for privacy.unit = "user"
{encoding}# teacher_model = "models/bert"  # local encoder of the simulated parties, for method.teacher = "fine-tuned"

[privacy]
epsilon = 4.0               # the whole run's budget
delta = 1e-5                # below 1 / (number of records) at every party
unit = "sample"             # whose presence is hidden: "sample", "user" or "party"
# max_per_user = 8          # records of one user or party that count
# user_contribution = "mean"  # a user's records count by their mean (no more noise) or "sum" (noise times max_per_user)

[federation]
parties = 5                 # one file is dealt to this many parties; several files are one party each
# alpha = 1.0               # Dirichlet concentration over labels; inf (the default) gives equal shares
# tolerated_dropouts = 1    # parties that may vanish in a private sum
# colluders = 1             # parties that may stand with the coordinator
# post_quantum = true       # masks that no later quantum computer opens: the default

[method]
name = "undersong"          # needs no tuning (docs/method.md); "wasp", "augpe", "dpkps", "dpga" and others: docs/
samples = 1000              # synthetic texts in all
rounds = 5
# name = "discriminator"    # another method: write plenty, keep what could have been private (docs/discriminator.md)
# keep = 0.75               # of its candidates

[[generators]]              # repeat this section for several; the method finds out which is best
name = "small"
kind = "ngram"              # embedded: an n-gram model over a public corpus
corpus = "public.jsonl"     # JSONL with text and label

# [[generators]]
# name = "big"
# kind = "openai"           # any OpenAI-compatible endpoint
# model = "gpt-4o-mini"
# base_url = "https://api.openai.com/v1"
# api_key_env = "OPENAI_API_KEY"  # a variable whose name ends in _API_KEY; "" where the endpoint needs no key
# price_budget_usd = 5.0    # stops before it is exceeded; needs the two prices
# price_per_1k_prompt = 0.00015
# price_per_1k_completion = 0.0006

# [[generators]]
# name = "local"
# kind = "transformers"     # a folder with a causal language model
# path = "models/llama"

[embedder]
model = "packaged"          # all-MiniLM-L6-v2, or a local sentence-transformers folder

# [evaluation]
# test = "test.jsonl"       # a public test set, evaluated at the end
# repeats = 5               # seeds of every task model: intervals in the report
# encoder = "packaged"      # an encoder that is fine-tuned beside the panel; slow without a GPU

[output]
dir = {output}

# [publication]             # what is to become of the data set: on its card, and `where` in the parties' consent sheet
# where = "https://example.org/data"
# licence = "CC-BY-4.0"
# language = "en"
# intended_use = ""
# limits = ""
"""


def commented_task(
    source: Path | None,
    folder: Path,
    *,
    text: str | None = None,
    label: str | None = None,
    user: str | None = None,
    encoding: str = UTF_8,
) -> str:
    """A task file (TOML) with every key explained; columns and labels come from ``source`` where one is given.

    Args:
        folder: where the file will lie.
        text, label, user: columns; None looks for the usual names (and for no user).
        encoding: of a CSV, TSV or JSONL source.

    Raises ConfigurationError for a source that cannot be read, or without such a column. Labels of a source become
    public in this file, which states that.
    """
    named = {"text": text, "label": label}
    columns = {role: column or role for role, column in named.items()}
    labels = ["first label", "second label"]
    name, path = "my task", "private.jsonl"
    if source is not None:
        found = column_names(source, encoding)
        columns = {role: column or _column(found, role, source) for role, column in named.items()}
        table = read_table(source, columns["text"], columns["label"], user, encoding=encoding)
        labels = sorted(set(table.labels or ()))
        if len(labels) > LARGEST_LABEL_COUNT:
            raise ConfigurationError(
                f"{source}: column {columns['label']!r} has {len(labels)} different values",
                "name the column of labels with --label-field, or write the task file by hand",
            )
        name = source.stem
        absolute = source.absolute()
        path = str(absolute.relative_to(folder)) if absolute.is_relative_to(folder) else str(absolute)
    return TEMPLATE.format(
        name=json.dumps(name),
        labels=json.dumps(labels, ensure_ascii=False),
        path=json.dumps(path),
        text=json.dumps(columns["text"]),
        label=json.dumps(columns["label"]),
        user='# user = "patient"' if user is None else f"user = {json.dumps(user)}",
        encoding="" if encoding == UTF_8 else f"encoding = {json.dumps(encoding)}\n",
        output=json.dumps(f"runs/{name.replace(' ', '-')}"),
    )


def _column(found: list[str], role: str, source: Path) -> str:
    synonyms = {
        "text": ("text", "note", "content", "sentence", "document"),
        "label": ("label", "class", "category", "intent"),
    }
    for candidate in synonyms[role]:
        if candidate in found:
            return candidate
    raise ConfigurationError(
        f"{source}: no column looks like the {role}", f"name one with --{role}-field; {nearest(role, found)}"
    )
