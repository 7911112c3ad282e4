"""Sentences for the data-protection impact assessment of a run, used by the hospital's and the coordinator's dossier.

Every figure is computed from the plan. The sentences are not legal advice.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from undersong_common.errors import ConfigurationError
from undersong_common.printable import number, printable, that_hold
from undersong_common.privacy import accounting
from undersong_common.program.printed_page import PageSection

LARGEST_AUDIT_BYTES = 4 * 2**20
NO_PROTECTION = "practically no protection"
LEAST_COMPLETE = 0.99  # share of right guesses from which on a release protects practically nobody


def certainty(epsilon: float, delta: float) -> float:
    """Returns how sure of one unit, as a probability, somebody with even odds before can become, but for rare cases.

    With delta 0 it is e^epsilon / (1 + e^epsilon), and nothing passes it. Otherwise the odds shift by at most
    2 e^epsilon, but with a probability of at most 2 delta (:func:`chance_of_more`). For the event S that the loss is
    above epsilon + t, P(S) <= e^epsilon Q(S) + delta and Q(S) <= e^-(epsilon + t) P(S), hence
    P(S) <= delta / (1 - e^-t); here t = ln 2. The chance of a loss above epsilon itself may be larger than delta.

    >>> certainty(0.0, 0.0), certainty(math.inf, 1e-5), round(certainty(4.0, 1e-5), 4)
    (0.5, 1.0, 0.9909)
    """
    return 1.0 / (1.0 + math.exp(-epsilon) / _odds_room(delta))


def rare_certainty(epsilon: float, delta: float, share: float) -> float:
    """Returns the certainty that a guess passes in at most ``share`` of the runs of one Gaussian.

    The figures (``epsilon``, ``delta``) determine the Gaussian, and :func:`certainty` bounds it at each delta: at half
    of ``share``, as a guess passes it with a chance of at most twice the delta.

    >>> certainty(4.0, 1e-5) == rare_certainty(4.0, 1e-5, 2e-5), round(rare_certainty(4.0, 1e-5, 0.01), 3)
    (True, 0.954)
    """
    rare_delta = share / 2
    if rare_delta == delta:
        return certainty(epsilon, delta)
    mu = accounting.gaussian_mu(epsilon, delta)
    return certainty(accounting.gaussian_epsilon(mu, rare_delta), rare_delta)


def odds_factor(epsilon: float, delta: float) -> float:
    """Returns the factor by which the odds about one unit shift at most.

    They shift by more only with the chance that :func:`chance_of_more` states.
    """
    return math.exp(epsilon) * _odds_room(delta)


def _odds_room(delta: float) -> float:
    """Returns the factor beside e^epsilon by which odds may shift: 2 with a delta above 0 (:func:`certainty`)."""
    return 2.0 if delta else 1.0


def chance_of_more(delta: float, unit_count: int = 1) -> str:
    """Returns the chance, in words, that somebody becomes surer than :func:`certainty` about one of the units.

    >>> chance_of_more(1e-5), chance_of_more(1e-6, 1_200)
    ('2 in 100,000', '2,400 in 1,000,000')
    """
    return chance(delta, f"{2 * unit_count:,}")


def nearly_all(delta: float, run_words: str = "runs like it", unit_count: int = 1) -> str:
    """Returns in how many runs the figure of :func:`certainty` holds for all of ``unit_count`` units, as a frequency.

    >>> nearly_all(1e-5), nearly_all(0.0)
    ('in all but at most 2 of 100,000 runs like it', 'in all runs like it')
    >>> nearly_all(1e-5, "runs", 107)
    'in all but at most 214 of 100,000 runs'
    """
    exceptions = f" but at most {2 * unit_count:,} of {round(1 / delta):,}" if delta else ""
    return f"in all{exceptions} {run_words}"


def cases(right: float) -> str:
    """Returns the probability ``right`` as a number of cases in 100, rounded up; 100 only for certainty.

    >>> from undersong_common.privacy.accounting import Gaussian, best_guess
    >>> cases(best_guess([Gaussian(1.08116)])), cases(0.9905), cases(1.0)
    ('68', '99.1', '100')
    """
    for shown_digits in range(7):
        rounded_percent = math.ceil(100 * right * 10**shown_digits - 1e-6) / 10**shown_digits
        if rounded_percent < 100.0:
            return f"{rounded_percent:.{shown_digits}f}"
    return "100"


def chance(delta: float, times: str = "1") -> str:
    """Returns the probability ``delta`` in words, as ``times`` cases (1, or a number of units) in a whole number.

    >>> chance(1e-5), chance(1e-6, "1,200")
    ('1 in 100,000', '1,200 in 1,000,000')
    """
    return f"{times} in {round(1 / delta):,}"


def guess(right: float, about: str, mean: str = "on average") -> str:
    """Returns, as a clause, how often the best guess about one unit is right, made by somebody who sees the release.

    ``mean`` says of which mean the figure is.

    >>> guess(0.678, "one patient")
    'the best guess about one patient is, on average, right in at most 68 of 100 cases, instead of 50 by tossing a coin'
    """
    return f"{right_guess(right, about, mean)}, instead of 50 by tossing a coin"


def right_guess(right: float, about: str, mean: str = "on average") -> str:
    """Returns the clause of :func:`guess` without the comparison with a coin.

    >>> right_guess(0.9999, "one patient").partition("right ")[2]
    'in at most 99.99 of 100 cases (practically no protection)'
    """
    return (
        f"the best guess about {about} is, {mean}, right in at most {cases(right)} of 100 cases"
        f"{protection_words(right)}"
    )


def protection_words(right: float) -> str:
    """Returns, in brackets, that a guess right with this probability leaves practically no protection; "" below 0.99.

    >>> protection_words(0.989), protection_words(0.99)
    ('', ' (practically no protection)')
    """
    return f" ({NO_PROTECTION})" if right >= LEAST_COMPLETE else ""


def whole_budget(right: float, about: str) -> str:
    """Returns the sentence on what a fully used budget still protects, as sheet, policy and ledger state it.

    >>> whole_budget(0.7, "one patient")
    'At 100 % of the budget, the best guess about one patient is, on average, right in at most 70 of 100 cases.'
    """
    return f"At 100 % of the budget, {right_guess(right, about)}."


def whole_budget_of(epsilon: float, delta: float) -> str:
    """Returns :func:`whole_budget` of a budget that runs of Gaussian sums use up, for one patient.

    >>> whole_budget_of(math.inf, 1e-5)
    'A budget without limit is practically no protection.'
    """
    if math.isinf(epsilon):
        return f"A budget without limit is {NO_PROTECTION}."
    return whole_budget(accounting.best_guess_of(epsilon, delta, one_gaussian=True), "one patient")


def worst_guess(epsilon: float, delta: float) -> str:
    """Returns in words how sure a guess about one unit may become beyond its average, and with what chance surer.

    >>> worst_guess(4.0, 1e-5)
    'in all but at most 2 of 100,000 runs like it, a guess is right in at most 99.1 of 100 cases'
    >>> worst_guess(4.0, 0.0)
    'in all runs like it, a guess is right in at most 99 of 100 cases'
    """
    return f"{nearly_all(delta)}, a guess is right in at most {cases(certainty(epsilon, delta))} of 100 cases"


YARDSTICK = (
    "Epsilon 0 would tell nothing about anybody: a guess would be right in 50 of 100 cases. At delta 1 in 100,000, the"
    " best guess is on average right in at most {} of 100 cases at epsilon 1, {} at 4, and {} at 8."
)


def yardstick() -> str:
    """Returns a sentence by which a reader without statistics can place an epsilon.

    >>> yardstick().partition("right in at most")[2]
    ' 56 of 100 cases at epsilon 1, 68 at 4, and 80 at 8.'
    """
    guesses = (accounting.best_guess_of(epsilon, 1e-5, one_gaussian=True) for epsilon in (1.0, 4.0, 8.0))
    return YARDSTICK.format(*map(cases, guesses))


def total(epsilon: float, delta: float, *, composed: bool) -> str:
    """Returns sentences on a total epsilon over several runs: the ledger's and the operator's differ, and both hold.

    Args:
        composed: True for a hospital's ledger, False for the operator's sum of promises.

    >>> total(2.853, 1e-5, composed=True).partition(":")[0]
    'Epsilon 2.853 at delta 1e-5 is what these records were charged, composed at the delta of their budget'
    >>> total(4.5, 3e-5, composed=False).partition(":")[0]
    'Epsilon 4.5 at delta 3e-5 adds up the promises of these runs, epsilon and delta alike'
    """
    epsilon_words = f"Epsilon {number(epsilon)} at delta {number(delta)}"
    if composed:
        return (
            f"{epsilon_words} is what these records were charged, composed at the delta of their budget: each run"
            " draws its"
            " noise anew, so that together they cost less than their sum. The operator, who sees no ledger, adds up the"
            " promises of its runs, epsilon and delta alike, and states more. Both bounds hold."
        )
    return (
        f"{epsilon_words} adds up the promises of these runs, epsilon and delta alike: it bounds what they cost"
        " whoever took"
        " part in all of them. A hospital's ledger composes what its own records were charged, at the delta of their"
        " budget, and usually states less, as each run draws its noise anew. Both bounds hold."
    )


def guarantee(epsilon: float, delta: float, unit: str) -> tuple[str, ...]:
    """Returns sentences that explain (epsilon, delta)-DP as odds.

    Sources: Dwork and Roth 2014, section 2.3; the Bayesian form of Wasserman and Zhou 2010.

    Args:
        unit: privacy unit, "sample", "user" or "party".
    """
    if not math.isfinite(epsilon):
        return ("Epsilon of this run is infinite: nothing is promised, whatever else this page says.",)
    exception = f"; with a chance of {chance_of_more(delta)}, both are more" if delta else ""
    return (
        f"Suppose that somebody thinks it even chances that a certain {unit} was among the records, and then reads all"
        f" that was opened and published, with any other knowledge and any effort. A guess is then right in at most"
        f" {cases(certainty(epsilon, delta))} of 100 cases, at the very worst, and the odds shift by a factor of at"
        f" most {odds_factor(epsilon, delta):.4g}{exception}.",
        f"This bounds what the {unit}'s own records add. What is true of many, and is learnt from many, is meant to be"
        " learnt; it may still be unwelcome to one of them.",
        f"For a specialist: everything that was opened, and all that was computed from it (the texts, the weights, the"
        f" report), is ({epsilon:.4g}, {delta:.2g})-differentially private for one {unit}.",
    )


SEVERAL_HOSPITALS = (
    "The figures are of a patient whose records lie at one hospital. One with records at h hospitals is protected"
    " less, as h patients together are."
)


def assumptions(colluders: int, parties: int, unit: str) -> tuple[str, ...]:
    """Returns the assumptions of the privacy guarantee as sentences, for cards and dossiers (docs/privacy.md).

    Args:
        colluders: number of parties that may share what they know with the coordinator.
        parties: number of all parties.
        unit: privacy unit, "sample", "user" or "party".
    """
    return (
        "Every hospital runs the published program and holds a good source of randomness.",
        f"{_collusion_words(colluders, parties)} with the operator, and of their numbers the operator sees sums only."
        if parties > 1
        else "There is one hospital: it adds all of the noise itself, and its sum is what is released.",
        "The task's description, labels and prompts, and the list of generators, are public: nobody looked at the"
        " private records to fix them. What then chooses among generators and texts is noisy sums alone.",
        "Other releases about the same records add to this one; each hospital's ledger counts them.",
        *that_hold(
            (unit == "sample", "A person with several records is protected for each, not for all of them together."),
            (unit == "user", SEVERAL_HOSPITALS),
        ),
    )


def _collusion_words(colluders: int, parties: int) -> str:
    if colluders:
        return f"At most {colluders} of the {parties} hospitals share what they know"
    return f"None of the {parties} hospitals shares what it knows"


def read_audit(path: Path) -> dict[str, Any]:
    """Reads a file with the output of ``undersong audit --json``. Raises ConfigurationError for another content."""
    write_again = "write it with: undersong audit TASK.toml --json > FILE"
    try:
        with path.open("rb") as file:
            audit_bytes = file.read(LARGEST_AUDIT_BYTES + 1)
        if len(audit_bytes) > LARGEST_AUDIT_BYTES:
            raise ConfigurationError(
                f"{path}: is larger than an audit's result, at most {LARGEST_AUDIT_BYTES:,} bytes", write_again
            )
        audit_json = dict(json.loads(audit_bytes.decode("utf-8")))
        audit_section(audit_json)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}", write_again) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ConfigurationError(
            f"{path}: is not the result of an audit", write_again, code="no-audit-result"
        ) from None
    return audit_json


def audit_section(audit: Mapping[str, Any] | None) -> PageSection:
    """Returns the section on the audit by planted records: its result, or for None that no audit is attached."""
    title = "Tested by attack"
    if audit is None:
        return PageSection(
            title,
            (
                "No audit is attached. `undersong audit TASK.toml --json` plants records in simulated hospitals,"
                " attacks what the run publishes, and states what the attacks prove; its result can be attached with"
                " --audit.",
            ),
        )
    stated_confidence = _checked_number(audit["confidence"], 1.0)
    promised_epsilon = _checked_number(audit["epsilon"])
    attack_rows = [("attack", "proves epsilon of at least", "planted records found", "false alarms")]
    for verdict in _checked_list(audit["verdicts"]):
        detection = verdict["detection"]
        attack_rows.append(
            (
                printable(str(verdict["attack"]), 200),
                f"{_checked_number(verdict['epsilon']):.3g}",
                f"{_checked_count(detection['hits'])} of {_checked_count(detection['present'])}",
                f"{_checked_count(detection['false_alarms'])} of {_checked_count(detection['absent'])}",
            )
        )
    fault_words = [printable(str(fault), 400) for fault in _checked_list(audit["faults"])]
    if not fault_words and any(_checked_number(verdict["epsilon"]) > promised_epsilon for verdict in audit["verdicts"]):
        fault_words = ["an attack proves more than the promise, whatever else the file says"]
    played_parties = _checked_list(audit.get("played", ()))
    message_count = sum(_checked_count(message_log["messages"]) for message_log in played_parties)
    audit_points = [
        f"a hostile coordinator sent {message_count:,} messages to two copies of a"
        " party that differ in their records; it compared every byte of their answers but for masked vectors"
    ] * bool(played_parties)
    if "refutable_by_noise" in audit:
        refutable_epsilons = (audit["refutable_by_noise"], audit["refutable_by_attack"])
        smallest_provable = min(
            (_checked_number(epsilon) for epsilon in refutable_epsilons if epsilon is not None), default=math.inf
        )
        audit_points.append(
            f"of a build that draws too little noise, it could have refuted epsilon {smallest_provable:.3g} and more"
            if math.isfinite(smallest_provable)
            else "it could have refuted no epsilon: it had too few runs"
        )
    audit_points += [f"REFUTED: {fault}" for fault in fault_words] or ["nothing refuted the promise"]
    return PageSection(
        title,
        (
            f"The task {printable(str(audit['task']), 120)!r} with the method {printable(str(audit['method']), 60)!r}"
            f" was attacked in {_checked_count(audit['runs'])} simulated runs with"
            f" {_checked_count(audit['canaries'])} planted records each, at a promise of epsilon {promised_epsilon:g}."
            f" The figures hold together with {stated_confidence:.1%} confidence.",
            "An attack that fails proves nothing: these are lower bounds. One that succeeded beyond the promise would"
            " refute it.",
        ),
        points=tuple(audit_points),
        table=tuple(attack_rows),
        loud=bool(fault_words),
    )


def _checked_number(value: Any, largest: float = math.inf) -> float:
    if type(value) not in (int, float) or not 0 <= value <= largest:
        raise ValueError
    return float(value)


def _checked_count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**53:
        raise ValueError
    return value


def _checked_list(value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise TypeError
    return list(value)


def for_the_assessment(unit: str, *, post_quantum: bool) -> PageSection:
    """Returns the section on risks and measures, in the order of Article 35(7) of the GDPR."""
    if post_quantum:
        quantum_words = "masks are hybrid, against later quantum computers too"
    else:
        quantum_words = "masks are NOT safe from later quantum computers"
    return PageSection(
        "For an impact assessment",
        (
            "Sentences to start from, in the order of Article 35(7) GDPR. They describe the program; whether they fit"
            " the case is for the controller and the data protection officer to decide.",
        ),
        table=(
            ("asked", "what can be said"),
            (
                "description",
                "Records are compared with public texts on the hospital's own machine. Noised and masked sums over"
                " several hospitals steer which texts are published. No record, extract or embedding is sent.",
            ),
            (
                "necessity, proportionality",
                "The texts come from programs that see no record. What is taken from the records is a few sums,"
                " listed above one by one, with the noise that the promise needs; nothing is kept for other purposes.",
            ),
            (
                f"risk: a {unit} is recognised in what is published",
                "Bounded by the promise above, for any reader with any knowledge; tested by attack where an audit is"
                " attached. The words of a text come from these programs and public text, not from records.",
            ),
            (
                "risk: the coordinator, or somebody on the line, reads a hospital's answer",
                "Answers are masked end to end between the hospitals; only the sum opens. Between machines, connections"
                f" use TLS 1.3 with certificates on both sides; {quantum_words}.",
            ),
            (
                "risk: more is asked than was agreed",
                "People approve the words of one plan; the program recomputes sensitivity, noise and price of every sum"
                " and refuses what is not in it. A ledger on the hospital's disk stops at the budget, over all runs.",
            ),
            (
                "risk: hospitals were invented to isolate one",
                "A policy names hospitals that must take part, by fingerprint; the promise without any trust in the"
                " others is stated beside the other one.",
            ),
            (
                "remaining risk",
                "Delta; the assumptions above; what many records say together; the hospital's own machine and people.",
            ),
        ),
    )
