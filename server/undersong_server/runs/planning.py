"""The plan of a run, made before anything is spent: private sums, their noise, the generators' calls and its figures.

The parts of a task that need other packages or files are built here too: statistics, prompts and the author. In
figures, sensitivity and sigma are in natural units (one vote is 1).
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from undersong_common.errors import ConfigurationError, InternalError
from undersong_common.models import embedders
from undersong_common.models.embedding import Embed
from undersong_common.printable import counted, finite, joined, number, printable
from undersong_common.program import configuration, extras, plugins
from undersong_common.text.table import read_table
from undersong_protocol import statistics
from undersong_protocol.agreement import bounds
from undersong_protocol.agreement import words as sentences
from undersong_protocol.agreement.full_names import TASK_KEY
from undersong_protocol.agreement.plan import Plan, PlannedSum, Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.statistics.support import SupportVotes
from undersong_server import methods
from undersong_server.cluster import Cluster
from undersong_server.database.journal import Journal
from undersong_server.generators.author import RETRIES, TRIAL_ORDERS, Author
from undersong_server.generators.cleaning import Screening
from undersong_server.generators.interface import Estimate, GeneratorSettings, Surroundings
from undersong_server.generators.kinds.transformers import spread
from undersong_server.generators.orders import DrawWords, Order, Requests
from undersong_server.methods.interface import Attribute, Setting
from undersong_server.methods.parts import papers
from undersong_server.methods.parts.distance import with_distance
from undersong_server.methods.parts.metadata import NAME, with_lengths
from undersong_server.methods.parts.signal import MEASURED, Signal, expected_signal
from undersong_server.methods.parts.support import with_support
from undersong_server.progress import Progress
from undersong_server.prompts.rendering import Prompts
from undersong_server.runs.file_labels import label_warnings
from undersong_server.runs.held_out import shared_text_warnings
from undersong_server.runs.task import Task

PUBLIC_NOTICE = (
    "task.description, task.labels and the prompts go to the model provider: they count as public, so write nothing"
    " private there"
)

TEXT_WORDS = 120  # assumed length of an example, if the task does not bound the length of its texts

# Least and most seconds on two cores that do nothing else; benchmarks.simulation prints them beside what runs take.
_START_S = (6.0, 20.0)  # libraries, models, the corpus's report and test
_WORD_S = (0.00015, 0.0005)  # per word of a text that is embedded
_PAIR_S = (0.0004, 0.0012)  # per pair of parties that share masks, and sum
_SCORE_S = (1e-8, 4e-8)  # per record and coordinate of a sum
_ANY_RECORDS = 1_000  # Any number will do: a signal is in proportion to it, and least_records divides by it.
MOST_NOISE_PLANS = 5
_MOST_PUBLIC_TEXTS = 500  # most public texts that a plan reads
_MOST_NEIGHBOURS = 200  # per party; with more parties the graph is not complete


@dataclass(frozen=True)
class RunPlan:
    """A task's plan and its public setting.

    Attributes:
        generator_calls: texts ordered, without retries.
        trial_calls: texts that each generator with prompts writes before the first private sum, for no corpus.
    """

    task: Task
    setting: Setting
    plan: Plan
    generator_calls: int
    trial_calls: int = 0


def plan_run(task: Task) -> RunPlan:
    """Plans the private sums of a task and their noise. Raises ConfigurationError if the method cannot run."""
    if not task.generators:
        raise ConfigurationError("the task names no generator", "add a [[generators]] section", code="no-generator")
    if task.privacy.noise_multiplier:
        task, setting, requests = _with_stated_noise(task)
    else:
        task, setting, requests = task, *_task_sums(task)
    plan = plan_sums(requests, task.privacy.promise(), task.quorum())
    if math.isfinite(task.privacy.epsilon):
        plan.verify()
    method = methods.load(task.method.name)
    options = task.options
    asks_first = NAME in {planned.name for planned in plan.sums} or method.asks_first(options, setting)
    return RunPlan(task, setting, plan, method.generator_calls(options, setting), TRIAL_ORDERS if asks_first else 0)


def _task_sums(task: Task) -> tuple[Setting, list[SumRequest]]:
    """Returns a task's public facts and its private sums, those of its method and those that it asks for besides."""
    method = methods.load(task.method.name)
    setting = Setting(
        labels=task.task.labels,
        generators=tuple(generator.name for generator in task.generators),
        folder=task.locate(""),
        privacy=task.privacy.promise(),
        quorum=task.quorum(),
        embedder=task.embedder.model,
        expected_records=task.privacy.expected_records,
        attributes=tuple(
            Attribute(attribute.name, attribute.values, attribute.column is not None)
            for attribute in sorted(task.attributes, key=lambda attribute: attribute.column is not None)
        ),
        steerable=tuple(generator.steerable for generator in task.generators),
        recorded=frozenset(generator.name for generator in task.generators if generator.recorded),
    )
    if task.attributes and not method.reads_attributes:
        raise ConfigurationError(
            f"the method {task.method.name!r} does not read [[attributes]]",
            "take them out, or use another method",
            code="attributes-unread",
        )
    options = task.options
    requests = _planned_requests(task.method.name, method.plan(options, setting))
    if requests and not method.makes_private_sums:
        raise InternalError(f"the method {task.method.name!r} plans private sums and states that it makes none")
    # A method that asks no party anything gets no further sums.
    if task.privacy.lengths and method.makes_private_sums and not method.measures_lengths(options):
        requests = with_lengths(requests, task.privacy.lengths_share)
    if task.privacy.distance and method.makes_private_sums:
        if "expected_records" not in task.privacy.model_fields_set:
            raise ConfigurationError(
                "privacy.distance is on, but privacy.expected_records is not stated",
                "state it; a public guess is enough",
            )
        requests = with_distance(requests, embedders.dimension(task.embedder.model), task.privacy.distance_share)
    # The default method asks for the support of several generators by itself.
    asks_support = any(isinstance(request.statistic, SupportVotes) for request in requests)
    if task.privacy.support and method.makes_private_sums and not asks_support:
        texts = method.generator_calls(options, setting)
        requests = with_support(requests, len(setting.generators), texts, task.privacy.support_share)
    register_statistics(requests)
    return setting, requests


def _planned_requests(method: str, requests: object) -> list[SumRequest]:
    """Raises ConfigurationError unless a method's plan is a sequence of requests for private sums."""
    if not isinstance(requests, Sequence) or not all(isinstance(request, SumRequest) for request in requests):
        raise ConfigurationError(
            f"the plan of the method {method} is no list of SumRequest",
            "correct its plan(): return [SumRequest(NAME, STATISTIC), ...], or [] for no private sum",
            code="method-form",
        )
    return list(requests)


def _with_stated_noise(task: Task) -> tuple[Task, Setting, list[SumRequest]]:
    """Returns a task with the epsilon that follows from its noise multiplier, its facts, and its sums with that noise.

    A method may plan other sums at another epsilon: they are planned anew until the epsilon is theirs. Raises
    ConfigurationError for sums that have a noise of their own, or without any sum.
    """
    multiplier = task.privacy.noise_multiplier
    epsilon_remedy = "state privacy.epsilon instead"
    for _ in range(MOST_NOISE_PLANS):
        setting, requests = _task_sums(task)
        noisy_sums = [request.name for request in requests if request.law != "gaussian" or request.noise_multiplier]
        if noisy_sums or not requests:
            if noisy_sums:
                noise_words = f"{noisy_sums[0]} has a noise of its own"
            else:
                noise_words = "the method makes no private sum"
            raise ConfigurationError(f"privacy.noise_multiplier: {noise_words}", epsilon_remedy, code="noise-stated")
        requests_with_noise = [replace(request, noise_multiplier=multiplier) for request in requests]
        spent_epsilon = plan_sums(requests_with_noise, task.privacy.promise(), task.quorum()).epsilon()
        epsilon = math.ceil(spent_epsilon * 1e6) / 1e6  # a promise that a person can read, and not below what is spent
        if epsilon == task.privacy.epsilon:
            return task, setting, requests_with_noise
        task = task.model_copy(update={"privacy": task.privacy.model_copy(update={"epsilon": epsilon})})
    raise ConfigurationError(
        "privacy.noise_multiplier: no epsilon fits this noise, because the method plans other sums for each epsilon",
        epsilon_remedy,
        code="noise-stated",
    )


@dataclass(frozen=True)
class Planned:
    """A planned run of the coordinator, as ``undersong run plan`` fixed it.

    Attributes:
        name: name of the run, in the manifest and of its folder.
        task: the task file with its overrides, as read; ``folder`` is where its relative paths start.
        roster: names of the parties that take part.
        seed: seed of every public draw.
        insecure_noise_seed: tests only: the parties' noise is no secret, and the outputs say so.
        patience_s: longest wait of one request for a party.
    """

    name: str
    task: Mapping[str, Any]
    folder: str
    roster: tuple[str, ...]
    seed: int
    insecure_noise_seed: int | None
    patience_s: float

    def load(self) -> RunPlan:
        """Computes the plan and its noise anew. Raises ConfigurationError if the task is not valid here any more."""
        return plan_run(coordinator_task(self.task, Path(self.folder), self.roster))


def coordinator_task(data: Mapping[str, Any], folder: Path, roster: Sequence[str]) -> Task:
    """Validates task data as the coordinator runs them: with the roster's number of parties, without their files."""
    stated_parties = data.get("federation", {}).get("parties")
    if stated_parties is not None and stated_parties != len(roster):
        raise ConfigurationError(
            f"federation.parties is {stated_parties}, but {counted(len(roster), 'party takes', 'parties take')} part:"
            f" {', '.join(roster)}",
            "correct the task file, or choose as many parties (--parties A,B,C)",
        )
    task_sections = {key: value for key, value in data.items() if key != "data"}
    data_section = {key: value for key, value in data.get("data", {}).items() if key in ("root", "text", "label")}
    federation = {**data.get("federation", {}), "parties": len(roster)}
    task = configuration.validate(
        Task, {**task_sections, "data": data_section, "federation": federation, "folder": folder}, "the task file"
    )
    _ = task.options  # an invalid method option is found now, not when the method starts
    preset = str((task.method.model_extra or {}).get("preset", ""))
    if forbidden_steps := papers.forbidden(task.method.name, preset):
        raise ConfigurationError(
            f"method.preset {preset!r} of {task.method.name!r} has steps that are not private here:"
            f" {'; '.join(forbidden_steps)}",
            "run it by `undersong simulate`, or leave method.preset out",
            code="not-private",
        )
    return task


def require_packages(run_plan: RunPlan) -> None:
    """Raises ConfigurationError, which names the extra, for a package that the run needs and that is not installed.

    A plan alone needs none of them. Whoever starts a run calls this before a party is asked or a text is ordered.
    """
    task = run_plan.task
    method = methods.load(task.method.name)
    with extras.named(f"method {task.method.name}"):
        extras.require("sklearn", "pyarrow", *method.packages(task.options))
    for generator in task.generators:
        with extras.named(f"generator {generator.name}"):
            extras.require(*generator.packages)
    if task.evaluation.test is not None and task.task.labels and task.evaluation.encoder is not None:
        with extras.named("evaluation.encoder"):  # Fine-tuning needs torch; the panel does not.
            extras.require("torch", "transformers")


def build_author(
    task: Task,
    embed: Embed,
    environment: Mapping[str, str],
    journal: Journal,
    progress: Progress,
    *,
    seed: int,
    cluster: Cluster | None = None,
) -> Author:
    """Builds the author of a task, with its generators and its prompts (the task's own templates among them).

    Args:
        embed: texts -> quantised unit embeddings, for generators that draw by similarity.
        environment: variables in which generators find their keys, such as ``os.environ``.
        journal: keeps every answer.
        seed: seed of the generators' requests.
        cluster: its workers run the models in local folders; None runs them here.

    Raises ConfigurationError for a generator or a prompt that cannot be built.
    """
    folder = task.locate("")
    surroundings = Surroundings(task.task.labels, folder, embed, environment, journal)
    return Author(
        {
            settings.name: spread(settings, settings.build(surroundings), folder, cluster)
            for settings in task.generators
        },
        build_prompts(task),
        journal,
        progress,
        seed=seed,
        formats={settings.name: settings.prompt_format(folder) for settings in task.generators},
        draw_words=public_lengths(task),
        screening=Screening(embed, bound=task.prompts.near_duplicate),
    )


def build_prompts(task: Task, *, alike: bool = False) -> Prompts:
    """Builds the prompts of a task: built-in templates, except those that its [prompts] folder replaces.

    Args:
        alike: True makes every prompt of one label the same, for a model that is trained on it.
    """
    folder = None
    if task.prompts.folder:
        folder = task.locate(task.prompts.folder)
    task_words = task.task
    if alike:
        task_words = task_words.model_copy(update={"line_breaks": True, "attributes": {}})
    return Prompts(task_words, variety=task.prompts.variety and not alike, folder=folder)


def public_lengths(task: Task) -> DrawWords | None:
    """Returns a function that draws a length between the task's bounds, uniform on a log scale; None without bounds."""
    if task.task.words is None:
        return None
    fewest_words, most_words = task.task.words
    return lambda draw: round(math.exp(draw.uniform(math.log(fewest_words), math.log(most_words))))


def register_statistics(requests: Iterable[SumRequest]) -> None:
    """Registers the statistics of a method's requests, each with the hash of its package's source.

    Raises ConfigurationError for a statistic that no package declares, or that is another class than the declared one.
    """
    for request in requests:
        statistic = type(request.statistic)
        if statistic.__module__.startswith("undersong_protocol.") or statistics.source(statistic.name):
            continue
        plugin = plugins.find("statistics", statistic.name)
        if plugin is None:
            raise ConfigurationError(
                f"{request.name}: no installed package declares the statistic {statistic.name!r}",
                "declare it by an entry point of undersong.statistics; then it runs, in simulations only",
            )
        if plugins.load(plugin) is not statistic:
            raise ConfigurationError(
                f"{request.name}: {plugin.words} declares another statistic {statistic.name!r} than the"
                " method asks for",
                "correct the entry point",
            )
        statistics.register_foreign(statistic.name, statistic, plugins.source_hash(plugin))


def register_named_statistics(sources: Iterable[tuple[str, str]]) -> None:
    """Registers the statistics of a plan, given as (name, source hash); the hash is "" for this program's own.

    Only packages whose source has the stated hash are imported. Raises ConfigurationError if one is not installed here.
    """
    for name, source in dict(sources).items():
        if not source or statistics.source(name) == source:
            continue
        plugin = plugins.find("statistics", name)
        if plugin is None or plugins.source_hash(plugin) != source:
            raise ConfigurationError(
                f"the plan's statistic {printable(name, 60)!r} is another package's, which is not installed here with"
                f" the plan's source {printable(str(source), 64)}",
                "install that very release of its package",
            )
        statistics.register_foreign(name, plugins.load(plugin, source), source)


def register_installed_statistics() -> None:
    """Registers every installed statistic, in a process that computes for simulated parties and plans nothing."""
    for plugin in plugins.installed("statistics"):
        statistics.register_foreign(plugin.name, plugins.load(plugin), plugins.source_hash(plugin))


# The names below compute the figures of a plan.


@dataclass(frozen=True)
class SumFigures:
    """Figures of consecutive private sums of a plan that differ in dimension only.

    Attributes:
        releases: number of these sums; ``dimension`` has one entry per sum.
        noise: law of the noise.
        sigma: standard deviation of the opened noise; ``sigma_integer`` is in steps of the grid, ``scale`` per vote.
        share_sigma_integer: standard deviation, on the grid, of the noise that each party adds (before XNoise removes
            the excess).
        epsilon_so_far: of the whole run up to the last of these sums; None where the run is not private.
        source: SHA-256 (hex) of another package's statistic, which runs in simulations; "" for this program's own.
    """

    statistic: str
    releases: int
    noise: str
    dimension: tuple[int, ...]
    l1_sensitivity: float
    l2_sensitivity: float
    sigma: float
    sigma_integer: float
    scale: int
    modulus_bits: int
    share_sigma_integer: float
    epsilon_so_far: float | None
    source: str = ""


@dataclass(frozen=True)
class PlanFigures:
    """The figures of a run, before anything is spent.

    Attributes:
        generators: their names; ``generator_calls`` counts texts ordered, without retries.
        unpublished: sentence on the calls whose texts are not published; "" where all may be.
        trial_calls: texts of language models for no corpus, before the first private sum; "cost" counts them.
        epsilon_if_all_others_collude: epsilon of one party's own noise; None if there is no such figure.
        cost: of all generators; its seconds are those of the whole run with all parties on one machine. Real parties
            compute at the same time, and their people and lines take time that nobody can plan.
        method_notes: sentences of the method for whoever plans a run of it.
        paper: privacy figures that the method's paper states for such a plan, to compare; None if it states none.
        weak: choices of the task that promise little, or with which the run may not end, in one sentence each.
        questions: different questions that the run asks of a hospital, in the plan's order, as the sheets word them.
        published: the most texts that are published.
        least_records: number of records of all hospitals together below which single counts and votes are noise; 0
            without counts and votes.
        other_labels: a sentence on each file that carries other labels than the task; a form has them at its fields.
    """

    method: str
    privacy: Privacy
    quorum: Quorum
    sums: tuple[SumFigures, ...]
    epsilon_if_all_others_collude: float | None
    generators: tuple[str, ...]
    generator_calls: int
    trial_calls: int
    cost: Estimate
    method_notes: tuple[str, ...]
    paper: Mapping[str, float] | None
    weak: tuple[str, ...] = ()
    questions: tuple[str, ...] = ()
    unpublished: str = ""
    published: int = 0
    least_records: int = 0
    other_labels: tuple[str, ...] = ()

    @property
    def asks(self) -> str:
        """The end of the sentence on what each hospital is asked."""
        return sentences.asked(self.questions, "its")

    @property
    def further_questions(self) -> tuple[str, ...]:
        """The questions that :attr:`asks` only counts."""
        return sentences.further(self.questions, "its")

    @property
    def worst_case_words(self) -> str:
        """The clause that says who helps the coordinator where only the noise of a patient's own hospital is left."""
        other_count = self.quorum.parties - 1
        if other_count < 1:
            return "since no other hospital takes part"
        helper_words = "the other hospital helps" if other_count == 1 else f"all {other_count} other hospitals help"
        return f"if {helper_words} the coordinator"

    @property
    def collusion_words(self) -> str:
        """Says which epsilon to tell the hospitals, and why that of the worst case is smaller with fewer of them."""
        if self.epsilon_if_all_others_collude is None or self.quorum.parties < 2:
            return ""
        return (
            f"Tell the hospitals the promise, epsilon {number(self.privacy.epsilon)}: a budget counts it, and it holds"
            f" while no more than {self.quorum.colluders} of the {self.quorum.parties} hospitals help the coordinator"
            " against the others. The worst case is what remains for a patient"
            f" {self.worst_case_words}: the noise of the patient's own hospital alone. Each hospital adds more noise"
            " where fewer take part, so this figure is smaller with fewer hospitals; but then fewer have to act"
            f" together, and they are not safer.{self._several_hospitals_words} Runs over the same records add up: the"
            " screen Hospitals says what is left at each."
        )

    @property
    def _several_hospitals_words(self) -> str:
        """Says whom the promise for a patient does not cover whole; "" for another unit."""
        if self.privacy.unit != "user":
            return ""
        return " The promise is for a patient of one hospital: one with records at several is protected less."

    def to_json(self) -> dict[str, Any]:
        """The JSON of ``undersong plan``."""
        cost_json = {"tokens": self.cost.tokens, "price_usd": self.cost.price_usd, "time_s": self.cost.seconds}
        weak_choices = [*self.weak, *self.other_labels]
        optional_facts = {"method_notes": list(self.method_notes), "weak_choices": weak_choices, "paper": self.paper}
        return {
            "epsilon": finite(self.privacy.epsilon),
            "delta": self.privacy.delta,
            "unit": self.privacy.unit,
            "queries": [asdict(planned_sum) for planned_sum in self.sums],
            "epsilon_if_all_others_collude": self.epsilon_if_all_others_collude,
            "generator_calls": self.generator_calls,
            "trial_calls": self.trial_calls,
            "notice": PUBLIC_NOTICE,
            **cost_json,
            **{key: value for key, value in optional_facts.items() if value},
        }


def plan_figures(run: RunPlan) -> PlanFigures:
    """Computes the figures of a plan: sums with their noise and epsilon, calls of generators, cost and warnings."""
    is_private = math.isfinite(run.plan.privacy.epsilon)
    quorum = run.plan.quorum
    # None where nothing is asked, where nothing is private, and where Laplace shares give no bound.
    epsilon_alone = None
    if run.plan.sums and is_private:
        epsilon_alone = finite(run.plan.epsilon_if_all_others_collude())
    method = methods.load(run.task.method.name)
    options = run.task.options
    return PlanFigures(
        method=run.task.method.name,
        privacy=run.plan.privacy,
        quorum=quorum,
        questions=sentences.questions(run.plan),
        sums=tuple(
            SumFigures(
                statistic=group[0].statistic,
                releases=len(group),
                noise=group[0].law,
                dimension=tuple(planned.dimension for planned in group),
                l1_sensitivity=group[0].l1,
                l2_sensitivity=group[0].l2,
                sigma=group[0].sigma,
                sigma_integer=group[0].sigma_integer,
                scale=group[0].scale,
                modulus_bits=max(planned.modulus_bits for planned in group),
                share_sigma_integer=group[0].drawn_sigma_integer / math.sqrt(quorum.honest_survivors),
                epsilon_so_far=run.plan.epsilon_after(last) if is_private else None,
                source=group[0].source,
            )
            for group, last in _neighbouring_sums(run.plan)
        ),
        epsilon_if_all_others_collude=epsilon_alone,
        generators=run.setting.generators,
        generator_calls=run.generator_calls,
        unpublished=_unpublished(run),
        published=_fewest_calls(run),
        trial_calls=run.trial_calls
        * sum(generator.prompt_format(run.task.locate("")).reads for generator in run.task.generators),
        cost=_expected_cost(run),
        method_notes=(*method.notes(run.task.options, run.setting), *signal_notes(run), *batch_notes(run)),
        paper=_paper_figures(run) or None,
        weak=(
            *bounds.weak_plan(run.plan),
            *method.warnings(options, run.setting, partial(public_texts, run.task)),
            *(noise_warnings(run, records) if (records := declared_records(run.task)) else ()),
            *cap_warnings(run),
            *shared_text_warnings(run.task),
        ),
        least_records=least_records(run),
        other_labels=tuple(label_warnings(run.task)),
    )


def _paper_figures(run: RunPlan) -> Mapping[str, float]:
    """Returns the privacy figures that the method's paper states for such a plan; {} if it states none."""
    options = run.task.options
    stated_privacy = run.plan.privacy
    if isinstance(options, papers.StatedOptions):
        stated_privacy = options.stated(stated_privacy)
    if not math.isfinite(stated_privacy.epsilon):
        return {}
    method = methods.load(run.task.method.name)
    return method.paper_figures(options, replace(run.plan, privacy=stated_privacy))


def _unpublished(run: RunPlan) -> str:
    """The sentence that explains why a run has more calls than texts; "" where it publishes what it orders."""
    method = methods.load(run.task.method.name)
    published_count = _fewest_calls(run)
    if published_count == run.generator_calls:
        return ""
    further_calls = counted(run.generator_calls - published_count, "further call", "further calls")
    return (
        f"At most {counted(published_count, 'text')} of them are published; up to {further_calls} {method.unpublished}."
    )


def _fewest_calls(run: RunPlan) -> int:
    """Texts ordered at least: where a method publishes fewer than it may order, the further ones may not be needed."""
    published_count = methods.load(run.task.method.name).published(run.task.options)
    return run.generator_calls if published_count is None else min(published_count, run.generator_calls)


def public_texts(task: Task) -> Sequence[str]:
    """Returns the first texts of the public test file; none where there is no such file."""
    path = None
    if task.evaluation.test:
        path = task.locate(task.evaluation.test)
    if path and path.exists():
        return read_table(path, task.data.text).texts[:_MOST_PUBLIC_TEXTS]
    return ()


def cap_faults(run: RunPlan) -> Iterator[tuple[str, str, str]]:
    """Yields a fault for each budget of a generator that the plan's expected cost exceeds: (problem, remedy, key)."""
    generator_names = run.setting.generators
    for generator_name, cap_key, stated_cap, expected_use, highest_use in _generator_caps(run):
        if expected_use > stated_cap * (1 + 1e-9):  # The remedy states a rounded figure, which has to pass here.
            yield (
                f"generator {generator_name}: {cap_key} is {stated_cap:g}, but the plan is expected to take"
                f" {expected_use:.12g}",
                f"raise {cap_key} to {expected_use:.12g} or more ({highest_use:.12g} suffices for sure), or ask for"
                " fewer samples",
                f"generators.{generator_names.index(generator_name)}.{cap_key}",
            )


def cap_warnings(run: RunPlan) -> Iterator[str]:
    """Yields a warning for each budget of a generator that covers the plan's expected cost but not its highest one."""
    for generator_name, cap_key, stated_cap, expected_use, highest_use in _generator_caps(run):
        if expected_use <= stated_cap * (1 + 1e-9) and highest_use > stated_cap * (1 + 1e-9):
            yield (
                f"generator {generator_name}: {cap_key} is {stated_cap:g}, and the plan may take up to"
                f" {highest_use:.12g} ({expected_use:.12g} is"
                " expected): the run may stop early, and has spent epsilon by then"
            )


def full_name_warnings(task: Task, parties: Iterable[str]) -> Iterator[str]:
    """Yields a warning where a task gives full names for parties that take no part in its run, which ignores them."""
    unknown_parties = sorted(task.federation.full_names.keys() - set(parties))
    if unknown_parties:
        quoted_names = joined([repr(printable(party, 120)) for party in unknown_parties])
        yield (
            f"federation.{TASK_KEY} is ignored for {quoted_names}: no hospital of this run has that name; nothing to do"
            " if you left it out, else correct the name"
        )


def declared_records(task: Task) -> int | None:
    """Returns how many records all parties hold together, as the task declares it; None if it does not.

    The default of privacy.expected_records is a guess that serves to divide a budget.
    """
    if "expected_records" in task.privacy.model_fields_set:
        return task.privacy.expected_records
    return task.data.records or task.data.file_records


def signal_notes(run: RunPlan) -> Iterator[str]:
    """Yields a note, with the noise, on each kind of counts and votes whose answer will stand out of the noise.

    The declared number of records decides; without one there is no note.
    """
    if records := declared_records(run.task):
        for sum_name, sum_signal in _sum_signals(run, records):
            if not sum_signal.is_noise:
                yield f"{sum_name}: {sum_signal}, of {records} records."


def noise_warnings(run: RunPlan, records: int) -> Iterator[str]:
    """Yields a warning for each kind of counts and votes whose answer of so many records will be noise."""
    for sum_name, sum_signal in _sum_signals(run, records):
        if sum_signal.is_noise:
            yield f"{sum_name}: {sum_signal}, of {records} records: most single coordinates will be noise"


def least_records(run: RunPlan) -> int:
    """Returns how many records it takes for any kind of counts or votes to be told from noise; 0 without either."""
    least_numbers = [signal.least_records(_ANY_RECORDS) for _, signal in _sum_signals(run, _ANY_RECORDS)]
    return min(least_numbers, default=0)


def _sum_signals(run: RunPlan, records: int) -> Iterator[tuple[str, Signal]]:
    for group, _ in _neighbouring_sums(run.plan):
        statistic = group[0].build()
        if statistic.question in MEASURED:
            yield group[0].name, expected_signal(statistic, group[0].sigma, records)


def batch_notes(run: RunPlan) -> Iterator[str]:
    """Yields a note on how many batches, one after the other, each generator that asks by batch files may need."""
    for generator in run.task.generators:
        if generator.in_batches:
            if run.trial_calls:
                trial_words = " and one before the first private sum"
            else:
                trial_words = ""
            yield (
                f"generator {generator.name}: asks by batches, each answered within a day: up to {1 + RETRIES} for each"
                f" step that orders texts (refused texts are asked once more){trial_words}"
            )


def _generator_caps(run: RunPlan) -> Iterator[tuple[str, str, float, float, float]]:
    """Yields (generator, key, cap, expected, most) of each cap; the middle of an estimate's range is expected."""
    for generator, estimate in zip(run.task.generators, _generator_estimates(run), strict=True):
        for cap_key, stated_cap, (expected_use, highest_use) in generator.caps(estimate):
            yield generator.name, cap_key, stated_cap, (expected_use + highest_use) / 2, highest_use


def _expected_cost(run: RunPlan) -> Estimate:
    estimates = _generator_estimates(run)
    price_ranges = [estimate.price_usd for estimate in estimates if estimate.price_usd is not None]
    price_usd = None
    if len(price_ranges) == len(estimates):
        price_usd = (
            sum(price_range[0] for price_range in price_ranges),
            sum(price_range[1] for price_range in price_ranges),
        )
    return Estimate(
        calls=sum(estimate.calls for estimate in estimates),
        tokens=(sum(estimate.tokens[0] for estimate in estimates), sum(estimate.tokens[1] for estimate in estimates)),
        price_usd=price_usd,
        seconds=_run_seconds(run, estimates),
    )


def _run_seconds(run: RunPlan, estimates: Sequence[Estimate]) -> tuple[float, float]:
    """Range of the whole run's seconds on two cores that do nothing else: generator, embeddings, sums, outputs."""
    record_count = run.setting.expected_records
    party_count = run.plan.quorum.parties
    written_word_count = sum(run.task.task.words or (0, TEXT_WORDS)) / 2 * (run.generator_calls + record_count)
    masked_pair_count = len(run.plan.sums) * party_count * min(party_count - 1, _MOST_NEIGHBOURS)
    score_count = record_count * sum(planned.dimension for planned in run.plan.sums)
    low_seconds, high_seconds = (
        _START_S[bound]
        + written_word_count * _WORD_S[bound]
        + masked_pair_count * _PAIR_S[bound]
        + score_count * _SCORE_S[bound]
        + max(estimate.seconds[bound] for estimate in estimates)
        for bound in (0, 1)
    )
    return low_seconds, high_seconds


def _generator_estimates(run: RunPlan) -> list[Estimate]:
    """Expected cost of each generator, if all are called equally often."""
    generator_count = len(run.task.generators)
    most_calls = math.ceil(run.generator_calls / generator_count) + run.trial_calls
    calls_range = _fewest_calls(run) // generator_count + run.trial_calls, most_calls
    return [_estimate_generator(run, generator, calls_range) for generator in run.task.generators]


def _estimate_generator(run: RunPlan, generator: GeneratorSettings, calls_range: tuple[int, int]) -> Estimate:
    """Range of a generator's cost: from the fewest calls without an example to the most with the longest examples.

    A method that orders more texts than it publishes may need none of the further ones.
    """
    task = run.task
    options = run.task.options
    prompt_format = generator.prompt_format(task.locate(""))
    if not prompt_format.reads:
        return generator.estimate(calls_range[1])
    least_word_count, most_word_count = task.task.words or (0, TEXT_WORDS)
    word_text = "word " * most_word_count
    example_count = getattr(options, "examples", 0)
    if not isinstance(example_count, int):
        example_count = len(example_count)
    example_kind = "paraphrase"
    if example_count:
        example_kind = "contrast"
    label = next(iter(task.task.labels), "")
    example_texts = tuple(f"{example_number} {word_text}" for example_number in range(example_count))
    sample_orders = [
        Order(generator.name, "zero_shot", label),
        Order(
            generator.name,
            example_kind,
            label,
            good=example_texts,
            parents=(word_text,),
        ),
    ]
    requests, _ = Requests(build_prompts(task), {generator.name: prompt_format}, seed=0).make(
        "estimate", sample_orders, (0, 1), (1, 1)
    )
    prompt_words = [len(f"{request.system} {request.prompt}".split()) for request in requests.values()]
    lowest_estimate, highest_estimate = (
        generator.estimate(call_count, pick_extreme(prompt_words), least_word_count)
        for call_count, pick_extreme in zip(calls_range, (min, max), strict=True)
    )
    if lowest_estimate.price_usd is None or highest_estimate.price_usd is None:
        price_usd = None
    else:
        price_usd = lowest_estimate.price_usd[0], highest_estimate.price_usd[1]
    return replace(
        highest_estimate, tokens=(lowest_estimate.tokens[0], highest_estimate.tokens[1]), price_usd=price_usd
    )


def _neighbouring_sums(plan: Plan) -> Iterable[tuple[list[PlannedSum], int]]:
    """Neighbouring sums that differ in dimension only, with the number of sums up to the group's end."""
    sum_kind = attrgetter("statistic", "l2", "scale", "sigma_integer", "sampling_rate", "law")
    sum_groups = [list(group) for _, group in itertools.groupby(plan.sums, key=sum_kind)]
    return zip(sum_groups, itertools.accumulate(map(len, sum_groups)), strict=True)
