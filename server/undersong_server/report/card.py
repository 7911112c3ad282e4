"""The dataset card: ``README.md`` beside the corpus, for whoever receives it. Its words are in ``card.md.j2``."""

import json
import re
from typing import Any

import numpy as np
from markupsafe import Markup

from undersong_server.evaluation import panel
from undersong_server.report.data import ReportData, number

_ESCAPED = "\\`*_{}[]()#|~"  # what could turn a name into markup


def render_card(data: ReportData) -> str:
    """Markdown with the usual YAML header. Counts are of the synthetic texts only."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("undersong_server.report", ""),
        autoescape=False,  # noqa: S701 - Markdown, whose every value ``finalize`` escapes
        finalize=lambda value: value if isinstance(value, Markup) else _md(str(value)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "count": lambda value: Markup(number(value) if value >= 10_000 else value),  # noqa: S704 - digits
        "percent": lambda value: f"{100 * value:.1f} %",
        "yaml": _yaml,
    }
    counts = data.counts().tolist()
    words = [len(sample.text.split()) for sample in data.samples]
    written = environment.get_template("card.md.j2").render(
        data=data,
        privacy=data.privacy,
        said=data.publication,
        spdx=re.fullmatch(r"[A-Za-z0-9.+-]+", data.publication.licence),
        texts=len(data.samples),
        named=[name for name in data.label_names if name],
        counts=list(zip(data.label_names, counts, strict=True)),
        totals=[sum(column) for column in zip(*counts, strict=True)],
        lengths=[f"{value:.0f}" for value in np.quantile(words, [0.05, 0.5, 0.95])] if words else [],
        settings=(
            ("method", data.method),
            *data.settings,
            ("embedder", data.embedder),
            ("signed plan, SHA-256", data.plan_hash),
            ("made", data.created),
            ("Undersong", data.version),
        ),
        panel_settings=panel.settings(),
    )
    return re.sub(r"\n{3,}", "\n\n", written).rstrip("\n") + "\n"


def _md(text: str) -> str:
    """Writes a name or sentence as plain Markdown text on one line."""
    line = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join("\\" + letter if letter in _ESCAPED else letter for letter in line)


def _yaml(text: Any) -> Markup:
    """Writes a name as a JSON string, which is also a YAML string, so that no colon or quote breaks the header."""
    return Markup(json.dumps(text, ensure_ascii=False).replace("<", "\\u003c"))  # noqa: S704
