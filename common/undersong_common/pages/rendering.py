"""Templates in which nothing that is shown can become markup, and nothing invisible stays invisible."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.ext import Extension
from jinja2.runtime import Context
from markupsafe import Markup, escape

from undersong_common.pages.store import new_key
from undersong_common.printable import duration, noun, number, printable, printable_lines

LONGEST = 2_000  # characters of one shown value
COMMAND = re.compile(r"`?(undersong(?:-party)? [^`;]*)`?")


class _Inside(Extension):
    """Puts every link and form of a template under the session's address, the variable ``base``."""

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        return re.sub(r'\b(href|(?:form)?action)="/(?!assets/)', r'\1="{{ base }}/', source)


def environment(packages: Sequence[str], actions: Mapping[str, tuple[str, str]] = MappingProxyType({})) -> Environment:
    """The shared templates, and those of ``packages`` (modules with a folder ``templates``) before them.

    A value that is shown passes :func:`undersong_common.printable.printable` and is escaped; ``|exact`` escapes alone
    (for values of forms), ``|lines`` keeps line breaks.

    Args:
        actions: (address, words) of the page's own action by the command that does the same; "" for an action of the
            screen on which the words stand. Remedies name them in place of commands.
    """
    made = Environment(
        loader=ChoiceLoader([PackageLoader(package) for package in (*packages, "undersong_common.pages")]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_visible,
        extensions=[_Inside],
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "exact": lambda text: Markup(escape(str(text))),  # noqa: S704 - escaped
        "commands": _commands,
        "lines": lambda text: Markup(escape(printable_lines(str(text)))),  # noqa: S704 - escaped
        "path": lambda text: Markup(quote(str(text), safe="")),  # noqa: S704 - quoted
        "when": when,
        "number": _shown_number,
        "plural": _shown_plural,
        "json": lambda value: Markup(escape(json.dumps(value))),  # noqa: S704 - escaped
        "bytes": size,
        "duration": _shown_duration,
    }
    made.globals |= {"actions": actions, "action_key": new_key, "query": _query, "infinity": math.inf}
    return made


def _shown_number(value: float | None, nothing: str = "none") -> Markup:
    """Its narrow spaces are meant, and need not be made visible."""
    return Markup(escape(number(value, nothing)))  # noqa: S704 - escaped


def _shown_duration(seconds: float) -> Markup:
    """A number stays beside its unit."""
    return Markup(escape(duration(seconds).replace(" min", "\xa0min").replace(" s", "\xa0s")))  # noqa: S704 - escaped


@pass_context
def _commands(context: Context, text: Any) -> Markup:
    """A remedy with the page's own actions in place of commands; without actions, commands stand as they are typed.

    A clause that names a command that the page has no action for keeps what stands before the colon, or is left out.
    """
    actions = context["actions"]
    if not actions:
        return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(_visible(str(text))))))  # noqa: S704 - escaped
    clauses = []
    for clause in str(text).split("; "):
        before, command, _ = COMMAND.split(clause, maxsplit=1) if COMMAND.search(clause) else (clause, "", "")
        known = next((action for typed, action in actions.items() if command.startswith(typed)), None)
        said = escape(_visible(before))
        if command and known is None:
            said = escape(_visible(before.rpartition(":")[0].removesuffix(", then")))
        elif known is not None:
            shown = '<a href="{0}{1}">{2}</a>' if known[0] else "<strong>{2}</strong>"
            said += Markup(shown).format(context["base"], *known)  # noqa: S704 - format escapes
        clauses += [said] * bool(said)
    return Markup("; ").join(clauses)


def _shown_plural(count: int, one: str, many: str = "") -> Markup:
    return Markup(escape(plural(count, one, many)))  # noqa: S704 - escaped


def _visible(value: Any) -> Any:
    return printable(value, LONGEST) if type(value) is str else value


def when(seconds: float | None, nothing: str = "never") -> Markup:
    """A time in UTC that the page's script turns into the reader's zone."""
    if not seconds:
        return Markup("{}").format(nothing)
    at = datetime.fromtimestamp(seconds, UTC)
    return Markup('<time datetime="{}">{} UTC</time>').format(
        at.isoformat(timespec="seconds").replace("+00:00", "Z"), at.strftime("%Y-%m-%d %H:%M:%S")
    )


def plural(count: int, one: str, many: str = "") -> str:
    """A count with its noun.

    >>> plural(1, "party", "parties"), plural(0, "run")
    ('1 party', '0 runs')
    """
    return f"{number(count)} {noun(count, one, many)}"


def size(count: int) -> str:
    """Bytes with a unit.

    >>> size(900), size(20480)
    ('900 B', '20.5 kB')
    """
    for unit, least in (("MB", 1e6), ("kB", 1e3)):
        if count >= least:
            return f"{count / least:.1f} {unit}"
    return f"{count} B"


def _query(current: Any, **changes: Any) -> Markup:
    """The address's query with some values changed, so that filters stay when one of them changes."""
    kept = {key: value for key, value in dict(current).items() if key not in (*changes, "part")}
    wanted = {key: value for key, value in changes.items() if value not in (None, "")}
    return Markup(escape("?" + urlencode({**kept, **wanted})))  # noqa: S704 - escaped
