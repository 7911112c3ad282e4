"""Screens on the terminal: progress, a plan, and a run that is watched."""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.text import Text

from undersong_common.printable import counted, printable, printable_lines
from undersong_common.program.logs import Repeats, without_numbers
from undersong_common.program.terminal import TerminalTable, screen
from undersong_server.operations.runs import STAMP, RunEvent
from undersong_server.progress import Progress, Silent
from undersong_server.runs.folder import FINAL
from undersong_server.runs.planning import PUBLIC_NOTICE, PlanFigures, SumFigures

LINE_S = 10.0  # shortest time between two lines of one phase
PACE_S = 3600.0  # seconds whose pace a bar shows; over rich's 30 s it would jump with each batch of slow answers
PLAN_HEADINGS = (
    "statistic",
    "releases",
    "dimension",
    "L1",
    "L2",
    "sigma",
    "sigma (integer)",
    "share per party",
    "modulus",
    "epsilon so far",
)
EXPLAINED = (
    "A run writes texts, asks the parties for private sums, and writes again: that is a round. A private sum takes up"
    " to five exchanges with every party: keys, pieces of keys, masked answers, who is in, opening."
)


@contextmanager
def display(quiet: bool) -> Iterator[Progress]:
    """Gives progress on standard error, so that standard output stays clean; silent progress if ``quiet``."""
    console = Console(stderr=True)
    if quiet:
        yield Silent()
    elif console.is_terminal:
        with bars(console) as progress_bars:
            yield Display(progress_bars)
    else:
        yield Lines()


def bars(console: Console) -> Bars:
    """Returns the bars of :class:`Display`, which a context starts and stops."""
    return Bars(
        TextColumn("{task.description:<28}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        speed_estimate_period=PACE_S,
    )


class Lines(Progress):
    """Progress in a pipe or a log: a line per phase, and one every 10 seconds."""

    def __init__(self, every_s: float = LINE_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s = every_s
        self._clock = clock
        self._phase = ""
        self._printed_at_s = 0.0
        self._phase_start = (0.0, 0)  # start of the phase, and units done then
        self._lock = threading.Lock()
        self._repeats = Repeats(clock=clock)

    def update(self, phase: str, done: int, total: int) -> None:
        with self._lock:
            now_s = self._clock()
            if phase != self._phase:
                self._phase_start = (now_s, done)
            elif now_s - self._printed_at_s < self._every_s:
                return
            self._phase = phase
            self._printed_at_s = now_s
            print(f"{phase} {done}/{total}{self._left(now_s, done, total)}", file=sys.stderr, flush=True)

    def _left(self, now_s: float, done_count: int, total_count: int) -> str:
        """Estimates the time left at the present pace; "" for under a minute."""
        began_at_s, first_count = self._phase_start
        if done_count <= first_count:
            return ""
        minutes = (now_s - began_at_s) / (done_count - first_count) * (total_count - done_count) / 60
        if minutes >= 1:
            return f", about {minutes:.0f} min left"
        return ""

    def say(self, message: str) -> None:
        for line in self._repeats.lines(message):
            print(line, file=sys.stderr, flush=True)


class Display(Progress):
    """Progress as bars of rich."""

    def __init__(self, progress_bars: Bars) -> None:
        self._bars = progress_bars
        self._tasks: dict[str, TaskID] = {}
        self._lock = threading.Lock()  # Generators write in threads of their own, and each of these reports progress.
        self._repeats = Repeats()

    def update(self, phase: str, done: int, total: int) -> None:
        with self._lock:
            if phase not in self._tasks:
                for finished_task in self._tasks.values():
                    self._bars.remove_task(finished_task)
                self._tasks = {phase: self._bars.add_task(phase, total=total)}
            self._bars.update(self._tasks[phase], completed=done, total=total)

    def say(self, message: str) -> None:
        for line in self._repeats.lines(message):
            self._bars.console.print(line, highlight=False, markup=False)


def render_plan(plan_figures: PlanFigures) -> RenderableType:
    """The plan's figures as a table and a few sentences."""
    privacy = plan_figures.privacy
    quorum = plan_figures.quorum
    rows = [_format_sum(sum_figures) for sum_figures in plan_figures.sums]
    table = TerminalTable(PLAN_HEADINGS, rows, title=f"private sums of {plan_figures.method!r}", left=1)
    lines = [
        f"Promise: epsilon {privacy.epsilon:g}, delta {privacy.delta:g} for one {privacy.unit}"
        + (
            f" (at most {counted(privacy.max_per_unit, 'record')}, their {privacy.contribution})"
            if privacy.unit != "sample"
            else ""
        )
        + ", add/remove neighbours.",
        f"Federation: {counted(quorum.parties, 'party', 'parties')}, threshold {quorum.threshold},"
        f" {quorum.tolerated_dropouts} may drop out, {quorum.colluders} may collude with the coordinator;"
        f" post-quantum masks {'on' if quorum.post_quantum else 'off'}.",
    ]
    epsilon_alone = plan_figures.epsilon_if_all_others_collude
    if epsilon_alone is not None:
        lines.append(
            f"If every other party colludes, one party's own noise alone still gives epsilon {epsilon_alone:.3f} at"
            f" delta {privacy.delta:g}."
        )
    foreign_sources = {
        sum_figures.statistic: sum_figures.source for sum_figures in plan_figures.sums if sum_figures.source
    }
    lines.extend(
        f"The statistic {name} is another package's (source {source}): it runs in simulations only. A hospital needs a"
        " release of Undersong with that statistic."
        for name, source in foreign_sources.items()
    )
    lines.extend(f"Weak: {sentence}." for sentence in (*plan_figures.weak, *plan_figures.other_labels))
    lines.extend(plan_figures.method_notes)
    if plan_figures.paper is not None:
        lines.append(_describe_paper(plan_figures.paper))
    lines.extend(_describe_calls_and_cost(plan_figures))
    lines.append(f"Note: {PUBLIC_NOTICE}.")
    return Group(table, *lines)


def _describe_calls_and_cost(plan_figures: PlanFigures) -> list[str]:
    """Returns sentences on the calls of generators, what is not published, and what a run is expected to cost."""
    trial_words = ""
    if plan_figures.trial_calls:
        trial_words = f" and {plan_figures.trial_calls} for trial texts before the first private sum"
    lines = [
        f"Generators: {counted(plan_figures.generator_calls, 'call')} ({', '.join(plan_figures.generators)})"
        f"{trial_words}, retries apart."
    ]
    if plan_figures.unpublished:
        lines.append(plan_figures.unpublished)
    cost = plan_figures.cost
    if cost.price_usd:
        price_words = f"US$ {cost.price_usd[0]:.2f} to {cost.price_usd[1]:.2f}"
    else:
        price_words = "no price is configured"
    cost_words = ""
    if cost.tokens[1]:
        cost_words = f" {cost.tokens[0]:,} to {cost.tokens[1]:,} tokens, {price_words},"
    lines.append(
        f"Expected, with as many calls of each generator:{cost_words} {cost.seconds[0]:.0f} to {cost.seconds[1]:.0f} s."
    )
    if cost_words:
        lines.append(
            "An answer that is lost on the way comes on top: it counts at its worst case, towards caps as well."
        )
    return lines


def _format_sum(sum_figures: SumFigures) -> tuple[str, ...]:
    """Returns a private sum as a row under ``PLAN_HEADINGS``."""
    smallest = sum_figures.dimension[0]
    largest = sum_figures.dimension[-1]
    return (
        sum_figures.statistic,
        str(sum_figures.releases),
        f"{smallest}" if len(set(sum_figures.dimension)) == 1 else f"{smallest}..{largest}",
        f"{sum_figures.l1_sensitivity:.4f}",
        f"{sum_figures.l2_sensitivity:.4f}",
        f"{sum_figures.sigma:.3f}",
        f"{sum_figures.sigma_integer:.2f}",
        f"{sum_figures.share_sigma_integer:.2f}",
        f"{sum_figures.modulus_bits} bits",
        "no privacy" if sum_figures.epsilon_so_far is None else f"{sum_figures.epsilon_so_far:.3f}",
    )


def _describe_paper(paper: Mapping[str, float]) -> str:
    delta_words = ""
    if "delta_iter" in paper:
        delta_words = f" (at delta {paper['delta_iter']:.3g} for each release)"
    sentence = (
        f"For information: the paper's own sigma is {paper['sigma']:.4f}{delta_words}, which really spends epsilon"
        f" {paper['epsilon_really_spent']:.3f}"
    )
    if "sigma_composed_jointly" in paper:
        sentence += (
            f"; exact accounting of its votes would need {paper['sigma_accounted_exactly']:.4f}, of all its mechanisms"
            f" together {paper['sigma_composed_jointly']:.4f}"
        )
    if "epsilon_of_accounted_votes" in paper:
        sentence += f" ({paper['epsilon_of_accounted_votes']:.3f} without the last vote, for which it does not account)"
    return sentence + "."


@contextmanager
def watching(*, silent: bool) -> Iterator[Callable[[RunEvent], None]]:
    """Gives the function that shows a run's events on the terminal as they come; ``silent`` shows nothing."""
    if silent:
        yield lambda _event: None
    elif sys.stdout.isatty():
        with Live(console=screen(), auto_refresh=False, transient=True) as live:
            yield WatchScreen(live).show
    else:
        yield WatchScreen(None).show


class WatchScreen:
    """A run that is watched.

    Args:
        live: the last line of a terminal, which renews itself; None in a pipe, where each event is a line.
    """

    def __init__(self, live: Live | None) -> None:
        self._live = live
        self._kind: tuple[object, ...] | None = None
        self._repeats = Repeats()
        self._print(EXPLAINED)

    def show(self, event: RunEvent) -> None:
        for line in event.lines:
            for shown_line in self._repeats.lines(line, without_numbers(line[STAMP:])):
                self._print(printable_lines(shown_line))
        words = event_words(event)
        if event.status.error is not None:
            return  # The command prints the error when it ends.
        if self._live is not None:
            has_ended = event.status.state in FINAL
            self._live.update(Text("" if has_ended else words), refresh=True)
            if has_ended:
                self._print(words)
        elif event.kind != self._kind:
            self._kind = event.kind
            self._print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {words}")

    def _print(self, line: str) -> None:
        if self._live is None:
            print(line, flush=True)
        else:
            self._live.console.print(line, highlight=False, markup=False)


def event_words(event: RunEvent) -> str:
    """Status of the run in one line; while it waits for people, with the begin of that wait and telephone contacts."""
    status = event.status
    words = printable(status.words, 4096)
    if status.waiting is not None and status.waiting.whom == "people":
        since_words = time.strftime("%Y-%m-%d %H:%M", time.localtime(status.waiting.since))
        words += f" since {since_words}"
        contacts = {name: printable(facts.party.contact, 200) for name, facts in event.awaited.items()}
        telephone_words = [
            f"{party.party}: {contacts.get(party.party) or 'no telephone number noted'}"
            + ("" if party.connected else " (its machine is away, too)")
            for party in status.waiting.parties
        ]
        words += f"; to telephone: {'; '.join(telephone_words)}"
    words += "".join(f"; {name}: {because}" for name, because in event.away_because)
    if not event.served and status.state not in ("finished", "stopped", "failed"):
        words += "; NOBODY IS SERVING: nothing goes on until `undersong coordinator serve` runs"
    return words
