"""Results of the library's functions: figures as attributes, tables as DataFrames, screens that print well."""

from __future__ import annotations

import html
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from undersong.run.frames import Frame, pandas_package
from undersong_common.errors import ConfigurationError
from undersong_common.printable import counted
from undersong_server.evaluation.evaluate import EvaluationReport
from undersong_server.operations.releases import PrivacyVerdict
from undersong_server.operations.tasks import TaskPlan
from undersong_server.release.files import JSONL_NAME, REPORT_NAME, charges
from undersong_server.runs.planning import PlanFigures

if TYPE_CHECKING:
    from undersong.auditing.verdict import AuditReport
    from undersong.run.simulation import Delivered

WIDTH = 160  # columns: every table of the command line fits
HEIGHT_PX = 640  # height of a page within a notebook
PREFORMATTED = '<pre style="overflow-x:auto;line-height:1.25;font-family:monospace">{code}</pre>'


class Shown(ABC):
    """A value that prints as its screen: text in ``str`` and ``repr``, HTML in a notebook."""

    @abstractmethod
    def screen(self) -> RenderableType:
        """Renders the value as the command line shows it."""

    def __str__(self) -> str:
        console = _make_console()
        with console.capture() as captured:
            console.print(self.screen())
        return "\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n"))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        console = _make_console()
        console.print(self.screen())
        return console.export_html(inline_styles=True, code_format=PREFORMATTED)


class Reported(Shown):
    """A result of an operation; ``found`` is the object that the operation returned."""

    found: Any

    def to_json(self) -> dict[str, Any]:
        """Returns the value that the operation's command prints with ``--json``."""
        found_json: dict[str, Any] = self.found.to_json()
        return found_json


class Judged(Reported):
    """A result that is a verdict on a data set or a promise: its faults, and its report line by line."""

    @property
    def faults(self) -> Sequence[str]:
        """Sentences on everything that does not hold; empty if there is none."""
        faults: Sequence[str] = self.found.faults
        return faults

    def screen(self) -> RenderableType:
        return Text("\n".join(self.found.lines()))


def _make_console() -> Console:

    return Console(record=True, file=io.StringIO(), width=WIDTH, force_jupyter=False)


class Page:
    """An HTML file that a notebook shows in a frame; it loads nothing from elsewhere."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"Page({str(self.path)!r})"

    def _repr_html_(self) -> str:
        escaped_page = html.escape(self.path.read_text(encoding="utf-8"))
        style = f"width:100%;height:{HEIGHT_PX}px;border:1px solid #ccc"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{escaped_page}"></iframe>'


@dataclass(frozen=True)
class Promise:
    """The promise of a run about one ``unit``. ``alone``: its epsilon if every other party colludes, or None."""

    epsilon: float
    delta: float
    unit: str
    alone: float | None

    def __str__(self) -> str:
        if self.alone is None:
            worst_words = ""
        else:
            worst_words = f"; {self.alone:.3f} if every other party colludes"
        return f"epsilon {self.epsilon:g}, delta {self.delta:g} for one {self.unit}{worst_words}"


@dataclass(frozen=True)
class Calls:
    """The planned calls of models, without retries.

    Attributes:
        texts: number of calls, one text each.
        generators: names of the models.
        tokens, time_s: (low, high).
    """

    texts: int
    generators: tuple[str, ...]
    tokens: tuple[int, int]
    time_s: tuple[float, float]

    def __int__(self) -> int:
        return self.texts

    def __str__(self) -> str:
        token_words = ""
        if self.tokens[1]:
            token_words = f", {self.tokens[0]:,} to {self.tokens[1]:,} tokens"
        time_words = f", {self.time_s[0]:.0f} to {self.time_s[1]:.0f} s"
        return f"{counted(self.texts, 'call')} of {', '.join(self.generators)}{token_words}{time_words}"


@dataclass(frozen=True)
class Money:
    """The cost of the calls in US dollars, (low, high); None if a generator that counts tokens has no price."""

    usd: tuple[float, float] | None

    def __str__(self) -> str:
        if self.usd is None:
            return "unknown: no price is configured"
        if self.usd[1] == 0:
            return "nothing"
        return f"US$ {self.usd[0]:.2f} to {self.usd[1]:.2f}"


@dataclass(frozen=True, repr=False)
class Plan(Reported):
    """The spending of a simulation, before it spends anything.

    >>> plan = us.plan(task)
    >>> plan.epsilon, int(plan.calls), str(plan.money)
    (4.0, 8, 'nothing')
    """

    found: TaskPlan

    @property
    def figures(self) -> PlanFigures:
        return self.found.figures

    @property
    def promise(self) -> Promise:
        privacy = self.figures.privacy
        return Promise(privacy.epsilon, privacy.delta, privacy.unit, self.figures.epsilon_if_all_others_collude)

    @property
    def epsilon(self) -> float:
        """Epsilon of the whole run."""
        return self.figures.privacy.epsilon

    @property
    def calls(self) -> Calls:
        cost = self.figures.cost
        return Calls(self.figures.generator_calls, self.figures.generators, cost.tokens, cost.seconds)

    @property
    def money(self) -> Money:
        return Money(self.figures.cost.price_usd)

    @property
    def sums(self) -> Frame:
        """A row for each kind of private sum: statistic, releases, sensitivity, sigma and the epsilon so far."""
        return pandas_package().DataFrame([asdict(planned_sum) for planned_sum in self.figures.sums])

    def screen(self) -> RenderableType:

        from undersong_server.cli.display import render_plan

        refusals = [f"A simulation would refuse this: {reason}." for reason in self.found.unready]
        return Group(render_plan(self.figures), *self.found.remarks, *refusals)


class Published(Shown):
    """A published data set: the folder of a finished simulation or federation.

    >>> "text" in us.load(run.folder).corpus
    True
    """

    def __init__(self, folder: Path) -> None:
        """Raises ConfigurationError if the folder holds no data set."""
        if not (folder / JSONL_NAME).is_file():
            raise ConfigurationError(f"{folder}: holds no {JSONL_NAME}", "name the folder of a finished run")
        self.folder = folder

    @property
    def corpus(self) -> Frame:
        """The synthetic texts, a row each: text, label, generator, round and prompt_kind."""
        lines = (self.folder / JSONL_NAME).read_text(encoding="utf-8").split("\n")
        return pandas_package().DataFrame([json.loads(line) for line in lines if line])

    def to_datasets(self) -> Any:
        """The synthetic texts as a ``datasets.Dataset``. Raises ConfigurationError without the package datasets."""
        try:
            import datasets
        except ImportError:
            raise ConfigurationError("the package datasets is not installed", "pip install datasets") from None
        return datasets.Dataset.from_pandas(self.corpus, preserve_index=False)

    @property
    def ledger(self) -> Frame:
        """Each party's charges for each private sum, from its signed receipt."""
        return pandas_package().DataFrame(charges(self.folder))

    @property
    def report(self) -> Page:
        """The run's report; a notebook shows it."""
        return Page(self.folder / REPORT_NAME)

    def screen(self) -> RenderableType:

        if "label" in self.corpus:
            counts = self.corpus["label"].value_counts()
        else:
            counts = {}
        label_words = ", ".join(f"{name} {count}" for name, count in counts.items() if name)
        corpus_words = f"{counted(len(self.corpus), 'text')} in {self.folder}"
        return Text(f"{corpus_words}: {label_words}" if label_words else corpus_words)


class Simulation(Published, Reported):
    """A finished simulation and the files that it left in ``folder``.

    >>> list(run.weights.columns), run.epsilon <= 4
    (['write'], True)
    """

    def __init__(self, found: Delivered, text: str = "text", label: str | None = "label") -> None:
        super().__init__(found.folder)
        self.found: Delivered = found
        self.text = text
        self.label = label

    @property
    def weights(self) -> Frame:
        """Each generator's weight, a column each, by round; without rows where the method has none."""
        report = self.found.report
        return pandas_package().DataFrame(list(report.weights), columns=list(report.generators)).rename_axis("round")

    @property
    def epsilon(self) -> float:
        """Epsilon that the run spent; 0 if no private sum was asked, inf if the run is not private."""
        privacy = self.found.report.privacy
        if not privacy.epsilon_after:
            return 0.0
        if privacy.is_private:
            return privacy.epsilon_after[-1]
        return float("inf")

    def screen(self) -> RenderableType:
        from undersong_server.report.screen import final_screen

        return final_screen(self.found.report, self.folder)


@dataclass(frozen=True, repr=False)
class Evaluation(Reported):
    """Usefulness, closeness and leakage of a corpus. These figures are not private: no budget covers them.

    >>> us.evaluate(run, test=test).distances["reference"].tolist()
    ['test file']
    """

    found: EvaluationReport

    @property
    def scores(self) -> Frame:
        """The task models, a row each: what each was trained on, its kind, and accuracy, balanced accuracy and F1."""
        plain_rows = [
            {key: value for key, value in model.items() if isinstance(value, str | int | float)}
            for model in self.to_json()["task_models"]
        ]
        return pandas_package().DataFrame(plain_rows)

    @property
    def distances(self) -> Frame:
        """Distances of the corpus from each reference file, a row each."""
        return pandas_package().DataFrame(self.to_json()["distances"])

    def screen(self) -> RenderableType:
        from undersong_server.cli.evaluation_screen import render

        return render(self.found)


@dataclass(frozen=True, repr=False)
class Audit(Judged):
    """Findings of an attack on real runs: the epsilon that it proves beside the promised one.

    >>> bool(us.audit(task, runs=2, canaries=1).bounds["epsilon"].max() <= 4)
    True
    """

    found: AuditReport

    @property
    def bounds(self) -> Frame:
        """A row for each attacker: the epsilon that it proves, and the largest that so many runs could prove."""
        rows = [
            {"attack": verdict.attack, "epsilon": verdict.epsilon, "most": verdict.most}
            for verdict in self.found.verdicts
        ]
        return pandas_package().DataFrame(rows)


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """Methods side by side, with paired differences; the files NAME.md, .csv and .html are in ``folder``.

    >>> us.compare(task, "wasp", test=test, seeds=1).cells["seed"].unique().tolist()
    [0]
    """

    folder: Path
    name: str
    rows: Mapping[str, Any]

    @property
    def table(self) -> Frame:
        """A row for each method, epsilon and federation: mean and deviation of every figure, and its paired difference
        from the baseline's.

        ``parties`` and ``records`` are NaN where they are the task's own.
        """
        return pandas_package().read_csv(self.folder / f"{self.name}.csv")

    @property
    def cells(self) -> Frame:
        """A row for each finished run: method, epsilon, parties, records, seed and every figure that is one number."""
        stored_cells = [
            json.loads(path.read_text(encoding="utf-8")) for path in sorted(self.folder.glob("cells/*.json"))
        ]
        plain_rows = [
            {key: figure for key, figure in cell.items() if not isinstance(figure, dict | list)}
            for cell in stored_cells
        ]
        return pandas_package().DataFrame(plain_rows).drop(columns="comparison", errors="ignore")

    @property
    def report(self) -> Page:
        """The table as a page with plots; a notebook shows it."""
        return Page(self.folder / f"{self.name}.html")

    def to_json(self) -> Mapping[str, Any]:
        """The value of ``undersong compare --json``."""
        return self.rows

    @property
    def markdown(self) -> str:
        """The comparison as Markdown: the whole table, the meaning of each column, and the command."""
        return (self.folder / f"{self.name}.md").read_text(encoding="utf-8")

    def screen(self) -> RenderableType:

        from undersong.comparison.table import ENOUGH_SEEDS, FEW_SEEDS, usefulness

        useful = usefulness(pandas_package().DataFrame(self.rows["rows"]))
        headings = ("method", "epsilon", "parties", "records", "seeds")
        table = Table(*headings, useful.heading, "difference", "95 % interval", "s a cell", box=box.SIMPLE)
        has_few_seeds = False
        for row in self.rows["rows"]:
            figures = (row[f"{useful.metric}_{part}"] for part in ("mean", "difference", "low", "high"))
            figure_texts = [
                "-" if figure is None else f"{useful.factor * figure:.{useful.digits}f}" for figure in figures
            ]
            interval = "-" if figure_texts[2] == "-" else f"{figure_texts[2]} to {figure_texts[3]}"
            difference_cells = (figure_texts[1], interval)
            if row["method"] == self.rows["baseline"]:
                difference_cells = ("reference", "")
            elif figure_texts[2] == "-" or row[f"{useful.metric}_seeds"] < ENOUGH_SEEDS:
                has_few_seeds = True
            row_cells = (
                *(row["method"], row["epsilon"], row["parties"] or "task's", row["records"] or "all"),
                f"{row[f'{useful.metric}_seeds']:.0f}",
                figure_texts[0],
                *difference_cells,
                f"{row['seconds']:.1f}",
            )
            table.add_row(*(Text(str(cell_text)) for cell_text in row_cells))
        files_line = f"Every figure: {self.folder / self.name}.md, .csv and .html"
        return Group(table, Text(f"{FEW_SEEDS}\n{files_line}" if has_few_seeds else files_line))


@dataclass(frozen=True, repr=False)
class Verification(Judged):
    """The verification of a published data set from its files alone.

    >>> found = us.verify(run)
    >>> found.holds, found.faults
    (True, ())
    """

    found: PrivacyVerdict

    @property
    def holds(self) -> bool:
        """True if all files fit together, come from a simulation or a known coordinator, and include a corpus."""
        return self.found.holds

    @property
    def epsilon(self) -> float:
        """Epsilon of the whole data set, recomputed from its files."""
        return self.found.epsilon
