"""``undersong-party budget ...`` and ``undersong-party policy ...``: what this hospital allows."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from undersong_client import operations
from undersong_client.cli.options import (
    DespiteCautions,
    HomeFolder,
    confirm_cautions,
    home_of,
    print_result,
    warn,
)
from undersong_client.consent.rules import QUESTION_OPTION, PolicyOptions
from undersong_client.home import PartyHome
from undersong_common.errors import ConfigurationError
from undersong_common.printable import printable
from undersong_common.program.options import AsJson, with_options

if TYPE_CHECKING:
    from undersong_client.consent.people import Person
    from undersong_client.operations.rules import BudgetFacts, PolicyFacts

budget_app = typer.Typer(help="How much may be spent on this data set, over all runs.", no_args_is_help=True)
policy_app = typer.Typer(help="What this hospital allows; what is not named is refused.", no_args_is_help=True)

Questions = Annotated[list[str] | None, typer.Option(QUESTION_OPTION["name"], help=QUESTION_OPTION["help"])]


def mount(app: typer.Typer) -> None:
    """Adds the commands to ``undersong-party``."""
    app.add_typer(budget_app, name="budget")
    app.add_typer(policy_app, name="policy")


@budget_app.command("set")
def set_budget(
    epsilon: Annotated[float, typer.Option(help="In all, over every run.")],
    delta: Annotated[
        float | None,
        typer.Option(
            help="Far below 1 / (number of patients); by default 1e-5, or less for more than 10 000 patients."
        ),
    ] = None,
    per_run: Annotated[float | None, typer.Option(help="The most that one run may promise (default: all).")] = None,
    parts: Annotated[
        int, typer.Option(help="Parts of delta: one for all Gaussian runs together, one for any other run.", min=1)
    ] = 1,
    despite_cautions: DespiteCautions = False,
    home: HomeFolder = None,
    as_json: AsJson = False,
) -> None:
    """Sets the budget; a smaller one than what was spent refuses every further run."""
    folder = home_of(home)
    budget_facts = operations.rules.set_budget(
        folder,
        epsilon=epsilon,
        delta=delta,
        per_run=per_run,
        parts=parts,
        person=_person(folder),
        confirm=lambda cautions: confirm_cautions(cautions, despite_cautions),
    )
    warn(budget_facts.warnings)
    print_result(as_json, budget_facts.to_json(), *budget_lines(budget_facts))


@budget_app.command("show")
def show_budget(home: HomeFolder = None, as_json: AsJson = False) -> None:
    """Shows the budget, and what is left of it."""
    budget_facts = operations.rules.budget(home_of(home))
    print_result(as_json, budget_facts.to_json(), *budget_lines(budget_facts))


def budget_lines(facts: "BudgetFacts") -> list[str]:
    """Returns the budget, and what is left of it, as lines for people."""
    allowed_budget = facts.allowed
    if not allowed_budget.has_budget:
        return ["no budget is set: every run is refused"]
    division_words = ""
    if allowed_budget.total_parts > 1:
        division_words = f", divided into {allowed_budget.total_parts} parts,"
    budget_words = (
        f"epsilon {allowed_budget.total_epsilon:g} at delta {allowed_budget.total_delta:g}{division_words} in all"
    )
    fact_lines = [f"{budget_words}; at most {allowed_budget.run_epsilon:g} a run"]
    if facts.spent is not None:
        fact_lines.append(f"spent {facts.spent:.4g}, left {facts.left:.4g}")
    fact_lines.append(allowed_budget.whole_budget)
    return fact_lines


@policy_app.command("set")
@with_options(PolicyOptions)
def set_policy(
    *,
    options: Any,
    despite_cautions: DespiteCautions = False,
    home: HomeFolder = None,
    as_json: AsJson = False,
) -> None:
    """Changes the policy and signs it. What is not given stays."""
    if options.require_nobody and options.required_parties:
        raise ConfigurationError("--require-nobody and --require-party contradict each other", "give one of them")
    if options.questions and options.named_statistics:
        raise ConfigurationError("--question and --statistic contradict each other", "give one of them")
    folder = home_of(home)
    policy_facts = operations.rules.set_policy(
        folder,
        options,
        person=_person(folder),
        confirm=lambda cautions: confirm_cautions(cautions, despite_cautions),
    )
    warn(policy_facts.warnings)
    _print_policy(policy_facts, as_json)


@policy_app.command("show")
def show_policy(home: HomeFolder = None, as_json: AsJson = False) -> None:
    """Shows the policy, after checking its signature."""
    _print_policy(operations.rules.show(home_of(home)), as_json)


@policy_app.command("duty")
def give_duty(
    account: Annotated[str, typer.Argument(metavar="ACCOUNT", help="Of the page, or of this machine (--terminal).")],
    duty: Annotated[str, typer.Argument(metavar="[ROLE]", help='"privacy officer" or "IT"; none takes it away.')] = "",
    terminal: Annotated[
        bool, typer.Option("--terminal", help="ACCOUNT is an account of this machine, which decides at a terminal.")
    ] = False,
    home: HomeFolder = None,
) -> None:
    """Gives somebody else's account its role under the rule of two.

    Whoever gives a role is none of the two for a day. Nothing tells which account of the page is theirs, so that nobody
    of the page is one of the two for a day either. If an administrator gives it on the page, the others still may be.
    """
    from undersong_client.consent import two_people
    from undersong_client.consent.people import note_decision
    from undersong_common.pages.duties import AT_THE_TERMINAL
    from undersong_common.program.owner import is_account_of_machine

    folder = PartyHome(home_of(home))
    if terminal and duty and not is_account_of_machine(account):
        raise ConfigurationError(
            f"this machine has no account {printable(account)}",
            "name the account as `id ACCOUNT` finds it; an account of the page goes without --terminal",
        )
    account_name = f"{account}{AT_THE_TERMINAL}" if terminal else account
    duty_giver = two_people.giver_at_terminal()
    two_people.give_duty(folder, account_name, duty, by=(duty_giver,))
    note_decision(folder, "policy duty", f"{account_name}: {duty or 'none'}, by {duty_giver}", None)
    print(f"{account_name}: {duty or 'no role'}; {duty_giver} is none of the two for a day")


def _person(folder: Path) -> "Person":
    from undersong_client.consent.people import person_of_terminal

    return person_of_terminal(PartyHome(folder))


def _print_policy(policy_facts: "PolicyFacts", as_json: bool) -> None:
    policy_json = policy_facts.to_json()
    rule_lines = (
        f"{rule_name}: {', '.join(rule_value) if isinstance(rule_value, list) else rule_value}"
        for rule_name, rule_value in policy_json.items()
    )
    refusal_line = f"this policy allows nothing: {'; '.join(policy_facts.missing)}"
    print_result(as_json, policy_json, *[refusal_line] * bool(policy_facts.missing), *rule_lines)
