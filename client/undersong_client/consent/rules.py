"""The rules of a hospital's policy: each is one field, with its type, default, option, field of the form and checks.

The command ``policy set``, the specialist's part of the page's form, the change of the policy and the rule of two
people read the fields from here. This file imports little, so that commands start at once. A rule about plans is
enforced in :mod:`undersong_protocol.agreement.bounds`, where the operator's side reads it too.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, make_dataclass
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from undersong_common.errors import ConfigurationError
from undersong_common.printable import is_number, printable
from undersong_common.program.declarations import Option
from undersong_protocol.limits import MinimumColluders, RequirePostQuantum

Approval = Literal["each", "standing"]
UNITS = ("sample", "user", "party")
MOST_PARTIES_TRIED = 10  # parties; from four on, a plan assumes the same number of colluding ones
REMEDY = "see `undersong-party policy set --help` and `undersong-party budget set --help`"


@dataclass(frozen=True)
class FormField:
    """A rule's field on the page, for a specialist.

    Attributes:
        choices: words for each value, of which one is chosen; {} takes a text.
        is_number: True for a whole number.
    """

    label: str
    hint: str
    choices: Mapping[str, str] = field(default_factory=dict)
    is_number: bool = False


@dataclass(frozen=True)
class Rule:
    """Everything about one rule but its type and default.

    Attributes:
        is_looser: returns True if a plan that was refused, or that waited for a person, by the first value could be
            signed by the second one.
        check: returns the problem of a value with its remedy; None for a valid one.
        option: declares the option of ``policy set``; None if another command sets the rule.
        form: the field on the page; None if the page has a field of another kind for it, or none.
        parse: returns the value of a text, from the option or the form.
    """

    is_looser: Callable[[Any, Any], bool]
    check: Callable[[Any], tuple[str, str] | None] = lambda _value: None
    option: Option | None = None
    form: FormField | None = None
    parse: Callable[[str], Any] = str


def decider_words(*, is_standing: bool, two_people: bool) -> str:
    """Returns who has to approve a run, in words: the log, ``check`` and a run's sheet say it by this function.

    >>> decider_words(is_standing=False, two_people=False)
    'one person'
    """
    if is_standing:
        return "nobody: every run within the policy is signed by itself"
    return "two people: a privacy officer and one for IT" if two_people else "one person"


def decider_consequence(*, is_standing: bool, two_people: bool, officer: str = "you") -> str:
    """Returns if one person can approve without another by a policy's rule, for sheet and policy.

    Args:
        officer: the privacy officer, as the page calls that person.

    >>> decider_consequence(is_standing=False, two_people=False)
    'IT can approve without you, by a command.'
    """
    if is_standing:
        return "No person is asked before it; Reject and Withdraw stop it all the same."
    if two_people:
        return "One of them alone approves nothing."
    return f"IT can approve without {officer}, by a command."


# The choices of the page's form, each with its values of ``is_standing`` and ``two_people``.
DECIDERS = {"each": (False, False), "two": (False, True), "standing": (True, False)}


def decider_choices() -> dict[str, str]:
    """Returns the words of each of :data:`DECIDERS`."""
    choices = {}
    for choice, (is_standing, two_people) in DECIDERS.items():
        rule_words = decider_words(is_standing=is_standing, two_people=two_people)
        consequence = decider_consequence(is_standing=is_standing, two_people=two_people, officer="the privacy officer")
        choices[choice] = f"{rule_words[0].upper()}{rule_words[1:]}. {consequence}"
    return choices


def allows_more(before: tuple[str, ...], after: tuple[str, ...]) -> bool:
    """Returns True if a list of what is allowed has a new member."""
    return bool({*after} - {*before})


def demands_less(before: tuple[str, ...], after: tuple[str, ...]) -> bool:
    """Returns True if a list of what is required lacks an earlier member."""
    return bool({*before} - {*after})


def is_smaller(before: float, after: float) -> bool:
    """Returns True if a least value has become smaller."""
    return after < before


def is_larger(before: float, after: float) -> bool:
    """Returns True if a largest value has become larger."""
    return after > before


def assumes_fewer(before: MinimumColluders, after: MinimumColluders) -> bool:
    """Returns True if, for some number of parties, a plan may assume fewer colluding ones than before the change."""
    from undersong_protocol.secagg.parameters import defaults

    def least(rule: MinimumColluders, parties: int) -> int:
        return defaults(parties)[2] if rule == "default" else rule

    return any(least(after, parties) < least(before, parties) for parties in range(1, MOST_PARTIES_TRIED + 1))


def parse_colluders(colluders_text: str) -> MinimumColluders:
    """Parses the rule ``minimum_colluders``. Raises ConfigurationError unless it is a whole number or "default"."""
    clean_text = colluders_text.strip()
    if clean_text == "default":
        return "default"
    if not is_number(clean_text):
        raise ConfigurationError(
            f"the smallest number of colluders is {printable(clean_text)!r}, which is no whole number",
            'write a whole number or "default"',
        )
    return int(clean_text)


def parse_whole(text: str) -> int:
    """Parses a whole number of at least 0. Raises ConfigurationError for any other text."""
    if not is_number(text.strip()):
        raise ConfigurationError(f"{printable(text.strip())!r} is not a whole number", "write for example 3")
    return int(text)


def _check_epsilon(epsilon: float) -> tuple[str, str] | None:
    is_wrong = math.isnan(epsilon) or epsilon < 0
    return (
        (f"an epsilon of the policy is {epsilon:g}, and must be a number of at least 0", REMEDY) if is_wrong else None
    )


def _check_delta(delta: float) -> tuple[str, str] | None:
    if 0 < delta < 1:
        return None
    return (f"delta {delta:g} is not between 0 and 1", REMEDY)


def _check_parts(parts: int) -> tuple[str, str] | None:
    if parts < 1:
        return (f"a budget of {parts} parts is impossible: the least is 1", REMEDY)
    return None


def _check_parties(parties: int) -> tuple[str, str] | None:
    return (f"the smallest number of parties is {parties}, and must be at least 1", REMEDY) if parties < 1 else None


def _check_declared_units(declared_units: int) -> tuple[str, str] | None:
    is_wrong = type(declared_units) is not int or declared_units < 0
    return ("the declared number of units is not a whole number of at least 0", REMEDY) if is_wrong else None


def _check_colluders(least: MinimumColluders) -> tuple[str, str] | None:
    if least == "default" or (type(least) is int and least >= 0):
        return None
    return (
        f'the smallest number of colluders is {least!r}, which is neither a whole number from 0 on nor "default"',
        'write a number or "default"',
    )


def _check_approval(approval: str) -> tuple[str, str] | None:
    is_known = approval in get_args(Approval)
    return None if is_known else (f"approval {approval!r} is unknown", 'write "each" or "standing"')


def _check_post_quantum(demand: str) -> tuple[str, str] | None:
    demand_choices = get_args(RequirePostQuantum)
    if demand in demand_choices:
        return None
    return f"require_post_quantum {demand!r} is unknown", f"choose among {', '.join(demand_choices)}"


def _check_units(units: tuple[str, ...]) -> tuple[str, str] | None:
    unknown_units = sorted(set(units) - set(UNITS))
    if unknown_units:
        return (f"unit {', '.join(unknown_units)!r} is unknown", f"choose among {', '.join(UNITS)}")
    return None


def _check_required(parties: tuple[str, ...]) -> tuple[str, str] | None:
    from undersong_protocol.agreement.enrolment import named_party

    for party in parties:
        named_party(party)
    return None


@dataclass(frozen=True)
class PolicyRules:
    """Limits that a hospital sets for every run. The defaults allow nothing: no coordinator, no epsilon.

    Attributes:
        coordinators: fingerprints of the trusted coordinators.
        statistics: names of the allowed statistics.
        units: accepted privacy units; only "user" protects a patient with several records.
        minimum_parties: least number of parties, this one included, with whose vectors a sum is opened; with 2, the
            one other party can subtract its own.
        run_epsilon: largest epsilon of one run.
        total_epsilon, total_delta: budget of the data set over all runs; a run's own delta may not be larger either.
        total_parts: number of parts into which that delta is divided (``undersong_common.privacy.spending``).
        approval: "each" run waits for a person, or "standing": every run within these bounds is signed.
        two_people: True requires the approval of two people, a privacy officer and one for IT.
        declared_units: a public upper bound on the number of privacy units (patients) in the data set, which the
            operator reads; a run whose delta is not below 1 / declared_units is refused. 0 declares nothing.
        required_parties: ``NAME=FINGERPRINT`` of parties that must take part; a coordinator can invent any others.
        require_post_quantum: "always" refuses runs without post-quantum masks, "never" accepts them.
        minimum_colluders: runs that assume fewer colluding parties are refused; "default": fewer than a plan assumes by
            default for its number of parties.
    """

    coordinators: Annotated[tuple[str, ...], Rule(allows_more)] = ()
    statistics: Annotated[tuple[str, ...], Rule(allows_more)] = ()
    units: Annotated[
        tuple[str, ...],
        Rule(
            allows_more,
            _check_units,
            Option(name="--unit", help="Accept these privacy units only: sample, user, party."),
        ),
    ] = UNITS
    minimum_parties: Annotated[
        int,
        Rule(
            is_smaller,
            _check_parties,
            Option(
                help="Your numbers are opened only together with those of at least one hospital fewer than this,"
                " whatever the list of a run says.",
                min=1,
            ),
        ),
    ] = 2
    run_epsilon: Annotated[float, Rule(is_larger, _check_epsilon)] = 0.0
    total_epsilon: Annotated[float, Rule(is_larger, _check_epsilon)] = 0.0
    total_delta: Annotated[float, Rule(is_larger, _check_delta)] = 1e-5
    # More parts allow more runs. Fewer give the runs so far a larger delta, at which their epsilon is smaller.
    total_parts: Annotated[int, Rule(lambda before, after: before != after, _check_parts)] = 1
    approval: Annotated[
        Approval,
        Rule(
            lambda before, after: after == "standing" and before != "standing",
            _check_approval,
            Option(type=str, help='"each" run waits for a person, or "standing".'),
        ),
    ] = "each"
    two_people: Annotated[
        bool,
        Rule(
            lambda before, after: before and not after,
            option=Option(
                name="--two-people/--one-person",
                help="Two people approve a run: a privacy officer and one for IT.",
            ),
        ),
    ] = False
    declared_units: Annotated[
        int,
        Rule(
            is_smaller,
            _check_declared_units,
            Option(
                help="A public bound on the number of patients: a run whose delta is not below 1 / this is refused, and"
                " the operator reads the number. 0: none.",
                min=0,
            ),
            FormField("Public bound on the number of patients", "The operator reads it; 0: none.", is_number=True),
            parse_whole,
        ),
    ] = 0
    required_parties: Annotated[
        tuple[str, ...],
        Rule(
            demands_less,
            _check_required,
            Option(
                name="--require-party",
                metavar="NAME=FINGERPRINT",
                help="Refuse runs without this party, known by the fingerprint that it has told you; repeat for"
                " several.",
            ),
        ),
    ] = ()
    require_post_quantum: Annotated[
        RequirePostQuantum,
        Rule(
            lambda before, after: after != "always" and before == "always",
            _check_post_quantum,
            Option(
                type=str,
                help="Which runs must have post-quantum masks, which no later quantum computer opens: always, never.",
            ),
            FormField(
                "Runs that must have post-quantum masks",
                "Which no later quantum computer opens.",
                {"always": "all", "never": "none"},
            ),
        ),
    ] = "always"
    minimum_colluders: Annotated[
        MinimumColluders,
        Rule(
            assumes_fewer,
            _check_colluders,
            Option(
                type=str,
                help="Runs that assume fewer colluding parties are refused: a number, or default, which is what a plan"
                " assumes for its number of parties (1 from four parties on).",
            ),
            FormField(
                "Fewest colluding hospitals that a run assumes", 'A number, or "default": 1 from four hospitals on.'
            ),
            parse_colluders,
        ),
    ] = "default"

    def __post_init__(self) -> None:
        rule_problems = [rule.check(getattr(self, rule_name)) for rule_name, rule in rules_of(type(self)).items()]
        rule_problems += [
            (
                f"epsilon {self.run_epsilon:g} for one run is more than the budget of all runs, {self.total_epsilon:g}",
                "lower what one run may promise, or raise the budget",
            )
            if self.run_epsilon > self.total_epsilon
            else None,
            ("two people are asked for, and standing approval asks nobody", "choose one of them")
            if self.two_people and self.approval == "standing"
            else None,
        ]
        ConfigurationError.raise_together(dict.fromkeys(filter(None, rule_problems)))


def rules_of(policy: type[Any]) -> dict[str, Rule]:
    """Returns the rules of a policy's class by the names of their fields."""
    type_hints = get_type_hints(policy, include_extras=True)
    return {rule_field.name: get_args(type_hints[rule_field.name])[1] for rule_field in fields(policy)}


def form_fields(policy: type[Any]) -> dict[str, FormField]:
    """Returns the fields of the page's form, for a specialist, by the names of the rules."""
    return {rule_name: rule.form for rule_name, rule in rules_of(policy).items() if rule.form is not None}


QUESTION_OPTION = Option(
    name="--question",
    help="Allow these kinds of questions only: counts, nearest, classifiers, directions, teachers, or all;"
    " repeat for several.",
)


@dataclass(frozen=True)
class PolicyChoices:
    """The choices of ``policy set`` beside the rules or in words of their own; None leaves a choice as it is.

    Attributes:
        questions: allowed kinds of questions (keys of ``statistics.QUESTIONS``). If a specialist has allowed only some
            statistics of a kind, these stay.
        named_statistics: names of the allowed statistics, for a specialist; not together with ``questions``.
        require_nobody: True removes all earlier required parties.
        share_budget: True tells the operator what is left of the budget.
        share_policy: True tells the operator the policy's bounds.
    """

    questions: Annotated[list[str] | None, QUESTION_OPTION] = None
    named_statistics: Annotated[
        list[str] | None,
        Option(name="--statistic", help="For a specialist: allow these statistics only; repeat for several."),
    ] = None
    require_nobody: Annotated[
        bool, Option(name="--require-nobody", help="Take back every --require-party of before.")
    ] = False
    share_budget: Annotated[
        bool | None, Option(name="--share-budget/--hide-budget", help="Whether the operator is told what is left.")
    ] = None
    share_policy: Annotated[
        bool | None,
        Option(
            name="--share-policy/--hide-policy",
            help="Whether the operator is told what this policy allows, and so which plans it would refuse.",
        ),
    ] = None


def option_class(policy: type[Any]) -> type[Any]:
    """Returns a frozen class of the options of ``policy set``: its choices, and a field for each rule with an option.

    None leaves a rule as it is.
    """
    type_hints = get_type_hints(policy, include_extras=True)
    option_members: list[tuple[str, Any, Any]] = []
    for rule_name, rule in rules_of(policy).items():
        if rule.option is not None:
            declared_type = rule.option.get("type", get_args(type_hints[rule_name])[0])
            option_type = list[str] if get_origin(declared_type) is tuple else declared_type
            option = Option(
                {
                    option_key: option_setting
                    for option_key, option_setting in rule.option.items()
                    if option_key != "type"
                }
            )
            option_members.append((rule_name, Annotated[option_type | None, option], None))
    return make_dataclass("PolicyOptions", option_members, bases=(PolicyChoices,), frozen=True)


def changes_of(policy: type[Any], options: Any) -> dict[str, Any]:
    """Returns the changes of a policy that an object of its :func:`option_class` states, as the fields' values."""
    changed_rules: dict[str, Any] = {}
    for rule_name, rule in rules_of(policy).items():
        stated_value = getattr(options, rule_name, None)
        if stated_value is not None:
            parsed_value = rule.parse(stated_value) if isinstance(stated_value, str) else stated_value
            if isinstance(parsed_value, list):
                changed_rules[rule_name] = tuple(parsed_value)
            else:
                changed_rules[rule_name] = parsed_value
    return changed_rules


PolicyOptions: Any = option_class(PolicyRules)
