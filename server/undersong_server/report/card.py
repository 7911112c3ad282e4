"""The dataset card: ``README.md`` beside the corpus, for whoever receives it."""

from __future__ import annotations

import json
import re

import numpy as np

from undersong_common.printable import counted
from undersong_server.evaluation import panel
from undersong_server.report.data import ReportData, number
from undersong_server.runs.task import PublicationSection

_ESCAPED = "\\`*_{}[]()#|~"  # what could turn a name into markup
# Programs that read the corpus from this folder; a test runs them as they stand in the card.
SNIPPETS = """```python
import pandas

texts = pandas.read_parquet("synthetic.parquet")
print(texts.groupby("label").size())
```

```python
from datasets import load_dataset

texts = load_dataset("parquet", data_files="synthetic.parquet", split="train")
print(texts[0]["text"])
```"""
SIZES = (1_000, 10_000, 100_000, 1_000_000)


def render_card(data: ReportData) -> str:
    """Markdown with the usual YAML header. Counts are of the synthetic texts only."""
    parts = [
        _header(data),
        f"# {_md(data.task)}: synthetic texts",
        _md(data.description),
        _what(data),
        *(f"> {_md(remark)}" for remark in data.remarks),
        "## Privacy",
        f"**{data.privacy.headline}**",
        _table(("", ""), data.privacy.terms),
        *_assumptions(data),
        "## What is in it",
        "`synthetic.jsonl` and `synthetic.parquet` hold the same rows:",
        _table(
            ("column", "meaning"),
            (
                ("text", "the synthetic text"),
                ("label", "its label, as ordered or as the method corrected it; not every label is right"),
                ("generator", "who wrote it"),
                ("round", "when, counted from 0"),
                ("prompt_kind", "what it was asked, such as zero_shot or contrast"),
            ),
        ),
        _counts(data),
        f"Length in words: {_lengths(data)}.",
        "## How to read it",
        SNIPPETS,
        "## Makers, licence and intended use",
        *_terms_of_use(data),
        "## How it was made",
        _settings(data),
        _usage(data),
        *_accuracy(data),
        "## Limits",
        "\n".join(f"- {limit}" for limit in _limits(data)),
        "## How to verify",
        "\n".join(f"- {step}" for step in _verification(data)),
        "## How to cite",
        f"Name the run (**{_md(data.run)}**), the method, and the privacy statement above, assumptions included; an "
        "epsilon without its delta, unit and neighbouring relation says little.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _header(data: ReportData) -> str:
    count = len(data.samples)
    bounds = ["n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "n>1M"]
    size = bounds[sum(count >= limit for limit in SIZES)]
    task = "text-classification" if any(data.label_names) else "text-generation"
    # JSON strings are YAML strings, so a name with a colon or a quote cannot break the header.
    name = json.dumps(data.task, ensure_ascii=False).replace("<", "\\u003c")
    lines = [
        "---",
        f"pretty_name: {name}",
        "tags: [synthetic, differential-privacy]" if data.privacy.is_private else "tags: [synthetic]",
        f"task_categories: [{task}]",
        f"size_categories: [{json.dumps(size)}]",
        *_header_of(data.publication),
        "configs:",
        "- config_name: default",
        "  data_files: synthetic.parquet",
        "---",
    ]
    return "\n".join(lines)


def _header_of(said: PublicationSection) -> list[str]:
    """Header lines that catalogues read: the licence by its SPDX name, and the language."""
    lines = []
    if re.fullmatch(r"[A-Za-z0-9.+-]+", said.licence):
        lines.append(f"license: {json.dumps(said.licence.lower())}")
    elif said.licence:
        lines += ["license: other", f"license_name: {json.dumps(said.licence)}".replace("<", "\\u003c")]
    if said.language:
        lines.append(f"language: [{json.dumps(said.language)}]")
    return lines


def _terms_of_use(data: ReportData) -> list[str]:
    said = data.publication
    makers = _md(said.makers or data.publisher[0])
    return [
        f"Made by {makers}." if makers else "Its makers have not named themselves.",
        f"Contact: {_md(said.contact)}." if said.contact else "Its makers have stated no contact.",
        f"Licence: {_md(said.licence)}."
        if said.licence
        else "Its makers have stated no licence: ask them before you use or pass on the texts.",
        f"Language: {_md(said.language)}." if said.language else "Its makers have not stated the language.",
        _md(said.intended_use) or "Its makers have stated no intended use.",
    ]


def _what(data: ReportData) -> str:
    written = (
        f"{_count(len(data.samples))} synthetic texts{_label_words(data)}, written by {_names(data.generators)} with "
        f"the method **{_md(data.method)}**"
    )
    if not data.privacy.epsilon_after:
        return f"{written}, from public inputs only."
    return (
        f"{written}. The private records of {_parties(data)} steered what was written, by sums only; no generator was "
        "shown a private text."
    )


def _assumptions(data: ReportData) -> list[str]:
    if not data.privacy.assumptions:
        return []
    return ["This holds if:", "\n".join(f"- {each}" for each in data.privacy.assumptions)]


def _counts(data: ReportData) -> str:
    counts = data.counts()
    rows = [
        (_md(name) or "(no label)", *(_count(int(n)) for n in row), _count(int(row.sum())))
        for name, row in zip(data.label_names, counts, strict=True)
    ]
    if len(rows) > 1:
        rows.append(("all", *(_count(int(n)) for n in counts.sum(axis=0)), _count(int(counts.sum()))))
    return _table(("label", *map(_md, data.generators), "all"), rows, numbers=True)


def _lengths(data: ReportData) -> str:
    if not data.samples:
        return "none"
    words = [len(sample.text.split()) for sample in data.samples]
    low, middle, high = (f"{value:.0f}" for value in np.quantile(words, [0.05, 0.5, 0.95]))
    return f"median {middle}, nine in ten between {low} and {high}"


def _settings(data: ReportData) -> str:
    rows = [
        ("method", data.method),
        *data.settings,
        ("embedder", data.embedder),
        ("signed plan, SHA-256", data.plan_hash),
    ]
    rows += [("made", data.created), ("Undersong", data.version)]
    return _table(("", ""), [(_md(key), _md(value)) for key, value in rows if value])


def _usage(data: ReportData) -> str:
    if not data.usage:
        return ""
    tokens, paid = any(each.tokens for each in data.usage), any(each.count.price_usd for each in data.usage)
    heads = (
        *("generator", "kind", "orders", "kept", "refused", "cut", "duplicate", "near duplicate", "other faults"),
        *("asked again", "dropped", *(("tokens",) if tokens else ()), *(("US$",) if paid else ())),
    )
    rows = [
        (
            _md(each.name),
            _md(each.kind),
            *map(_count, (each.count.orders, each.count.kept, *each.faults)),
            ", ".join(f"{_count(count)} {_md(fault)}" for fault, count in each.other) or "0",
            *map(_count, (each.count.retried, each.count.dropped)),
            *((_count(each.tokens),) if tokens else ()),
            *((f"{each.count.price_usd:.4f}",) if paid else ()),
        )
        for each in data.usage
    ]
    return _table(heads, rows)


def _accuracy(data: ReportData) -> list[str]:
    if not data.published_accuracy:
        return []
    rows = [
        (
            _md(each.data),
            f"{100 * each.accuracy:.1f} %",
            f"{100 * each.balanced_accuracy:.1f} %",
            f"{100 * each.macro_f1:.1f} %",
            f"{100 * each.rarest_recall:.1f} %",
            _md(each.model),
        )
        for each in data.published_accuracy
    ]
    return [
        f"Small models trained on each kind of data, judged on {_md(data.test_set) or 'one public test set'}:",
        _table(("trained on", "accuracy", "balanced accuracy", "macro-F1", "rarest label", "model"), rows),
        panel.settings(),
    ]


def _limits(data: ReportData) -> list[str]:
    found = [
        "The texts are invented. They may be wrong, and must not be read as facts about anybody or used for care.",
        "Labels are what was ordered, or what the method replaced them by; nobody checked every text.",
        "The generators bring their own errors, biases and memories of what they were trained on; the privacy "
        "statement is about the parties' records, not about those.",
    ]
    if data.privacy.epsilon_after and data.privacy.is_private:
        found.append(
            "Differential privacy bounds what can be learned about one unit. What is true of many records may show; "
            "that is what the texts are for."
        )
    if data.publication.limits:
        found.append(_md(data.publication.limits))
    if not data.privacy.is_private:
        found.insert(0, "**This corpus carries no privacy guarantee. Do not release it.**")
    return found


def _verification(data: ReportData) -> list[str]:
    found = [
        "`manifest.json` is the plan that every party signed: statistics, sensitivities, noise and the epsilon they "
        "compose to. It holds the hashes of this card and of the other files."
    ]
    if data.plan_hash:
        found.append(f"The SHA-256 they signed is {_md(data.plan_hash)}.")
    name, fingerprint = data.publisher
    if fingerprint:
        found += [
            f"`undersong verify . --fingerprint {fingerprint}`, typed in this folder, recomputes every figure offline"
            f" and checks who signed it; `pip install undersong` installs the program. The fingerprint is that of the"
            f" coordinator {_md(name)}.",
            "Compare the fingerprint first: each of the hospitals that took part has it, and the makers tell it over"
            " their contact. Whoever changed these files would have changed it here, too.",
        ]
    found += [
        "`ledger.jsonl` holds what each party charged for this run before it sent anything, as in its signed receipt; "
        "the charges compose to the statement above.",
        "Each party's own ledger, which it keeps, holds the same entries; ask it.",
        "`report.html` shows the same figures; it needs no network.",
    ]
    return found


def _table(heads: tuple[str, ...], rows: object, *, numbers: bool = False) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" + ("---:|" if numbers else "---|") * (len(heads) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]  # type: ignore[attr-defined]
    return "\n".join(lines)


def _label_words(data: ReportData) -> str:
    names = [name for name in data.label_names if name]
    return f" with {counted(len(names), 'label')}" if names else ""


def _parties(data: ReportData) -> str:
    return "one party" if data.privacy.parties == 1 else f"{data.privacy.parties} parties"


def _names(names: tuple[str, ...]) -> str:
    shown = [f"**{_md(name)}**" for name in names]
    return shown[0] if len(shown) == 1 else ", ".join(shown[:-1]) + " and " + shown[-1]


def _md(text: str) -> str:
    """A name or sentence as plain Markdown text on one line."""
    line = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join("\\" + letter if letter in _ESCAPED else letter for letter in line)


def _count(value: int) -> str:
    return number(value) if value >= 10_000 else str(value)
