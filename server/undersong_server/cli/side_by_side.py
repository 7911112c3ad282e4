"""``undersong run compare|evaluate|search|generators``: finished and earlier runs, their texts and their generators."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from undersong_common.printable import printable
from undersong_common.rows import show_rows
from undersong_server.cli.options import DEFAULT_HOME, AsJson, HomeFolder, RunName, print_json

if TYPE_CHECKING:
    from undersong_server.operations.run_evaluation import Evaluated


def mount(app: typer.Typer) -> None:
    """Adds the commands to ``undersong run``."""
    for command in (compare, evaluate, search, generators):
        app.command()(command)


def compare(
    names: Annotated[list[str], typer.Argument(metavar="RUN...", help="Two runs or more.")],
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
) -> None:
    """Runs side by side: promise, spending, calls, money, weights, variety of their texts, and what evaluate found."""
    from undersong_server.operations import results

    found = results.compare(home, names)
    if as_json:
        print_json([asdict(each) for each in found])
        return
    show_rows(
        ("run", "state", "method", "epsilon", "spent", "calls", "kept", "US$", "weights", "texts"),
        [
            (
                each.run,
                each.state,
                each.method,
                "not private" if each.epsilon is None else f"{each.epsilon:g}",
                "no privacy" if each.spent is None else f"{each.spent:.4g}",
                str(each.calls),
                str(each.kept),
                f"{each.price_usd:.2f}",
                ", ".join(f"{name} {100 * weight:.0f} %" for name, weight in each.weights.items()),
                ", ".join(f"{name} {value:.4g}" for name, value in each.quality.items()),
            )
            for each in found
        ],
        "no run was named",
    )
    for each in found:
        if each.evaluated is not None:
            print(printable(f"{each.run}, beside {_figures(each.evaluated)}", 2000))


def evaluate(
    name: RunName,
    test: Annotated[Path, typer.Option("--test", metavar="FILE", help="Real texts that are public.")],
    text_field: Annotated[str, typer.Option(help="Its text column.")] = "text",
    label_field: Annotated[str, typer.Option(help='Its label column; "" if it has none.')] = "label",
    repeats: Annotated[int, typer.Option(help="Seeds with each of which every model is trained.", min=1)] = 1,
    embedder: Annotated[str, typer.Option(help='"packaged" or a local sentence-transformers folder.')] = "packaged",
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
) -> None:
    """Judges a finished run's texts beside a public test file, and keeps the figures for `compare` and the console."""
    from undersong_server.operations.evaluation import embedder as load
    from undersong_server.operations.run_evaluation import evaluate_run

    found = evaluate_run(
        home,
        name,
        test,
        embed=load(embedder),
        text_field=text_field,
        label_field=label_field or None,
        repeats=repeats,
    )
    if as_json:
        print_json(asdict(found))
    else:
        print(printable(f"{name}, beside {_figures(found)}", 2000))


def _figures(found: Evaluated) -> str:
    return f"{found.test}: " + ", ".join(f"{name} {shown}" for name, shown in found.figures.items())


def search(
    name: RunName,
    find: Annotated[str, typer.Option(help="Words that a text holds, in any case.")] = "",
    label: Annotated[str, typer.Option(help="Texts of this label only.")] = "",
    generator: Annotated[str, typer.Option(help="Texts of this generator only.")] = "",
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
) -> None:
    """The published texts of a finished run that fit, with how many there are per label and per generator."""
    from undersong_server.operations import results

    found = results.search(home, name, find=find, label=label, generator=generator)
    if as_json:
        print_json(asdict(found))
        return
    for row in found.texts:
        print(
            printable(f"{row.get('label', '')}\t{row.get('generator', '')}\t", 300) + printable(str(row["text"]), 2000)
        )
    print(f"{len(found.texts)} of {found.corpus} texts")
    print(printable("labels: " + ", ".join(f"{key} {count}" for key, count in found.labels.items()), 2000))
    print(printable("generators: " + ", ".join(f"{key} {count}" for key, count in found.generators.items()), 2000))


def generators(
    test: Annotated[
        str | None, typer.Option(metavar="NAME", help="Ask this one for one text, as its newest run would.")
    ] = None,
    home: HomeFolder = DEFAULT_HOME,
    as_json: AsJson = False,
) -> None:
    """What each generator has done in the last 50 runs; --test asks one for a text, which may cost money."""
    from undersong_common.errors import ConfigurationError
    from undersong_server.operations import probing
    from undersong_server.operations.caches import public_cache_path
    from undersong_server.operations.following import Plans
    from undersong_server.operations.overview import RunIndex

    found = probing.usage(home, [run.run for run in RunIndex(home).runs()[:50]], Plans(home))
    if test is not None:
        named = next((each for each in found if each.name == test), None)
        if named is None:
            raise ConfigurationError(f"no run has a generator {test!r}", "see `undersong run generators`")
        environment = dict(os.environ)
        cache = public_cache_path(environment)
        probe = probing.call(home, named.run, test, environment=environment, public_cache=cache)
        if as_json:
            print_json(asdict(probe))
        else:
            print(printable(probe.problem or probe.text, 2000))
            print(f"{probe.seconds:.2f} s, {probe.tokens} tokens, US$ {probe.price_usd:.4f}")
        return
    if as_json:
        print_json([asdict(each) for each in found])
        return
    keys = ("calls", "kept", "retried", "dropped", "cut", "prompt_tokens", "completion_tokens")
    show_rows(
        ("generator", "kind", "runs", *keys, "US$", "answers/s", "latency s", "useless answers", "pace"),
        [
            (
                each.name,
                each.kind,
                str(each.runs),
                *(f"{each.counts.get(key, 0):g}" for key in keys),
                f"{each.counts.get('price_usd', 0):.2f}",
                *("" if figure is None else f"{figure:.3g}" for figure in (each.answer_rate, each.latency_s)),
                *(", ".join(f"{what} {count}" for what, count in own.items()) for own in (each.faults, each.counted)),
            )
            for each in found
        ],
        "no run was planned yet",
    )
