"""A new rule of the policy is one field: option, form, check, change and the rule of two people follow from it."""

from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer

from tests.doubles.typed import typed
from undersong_client.consent import rules
from undersong_client.consent.policy import HospitalPolicy, changed, loosened
from undersong_client.consent.rules import FormField, Rule, changes_of, form_fields, option_class
from undersong_common.errors import ConfigurationError
from undersong_common.program.declarations import Option
from undersong_common.program.options import with_options


def check_sums(most: int) -> tuple[str, str] | None:
    return ("no sum is allowed", "allow at least one") if most < 1 else None


@dataclass(frozen=True)
class StricterPolicy(HospitalPolicy):
    """A policy with one rule more."""

    most_sums: Annotated[
        int,
        Rule(
            rules.is_larger,
            check_sums,
            Option(help="Refuse runs of more sums than this."),
            FormField("Most sums of one run", "A whole number.", is_number=True),
            rules.parse_whole,
        ),
    ] = 10


def make_command() -> tuple[typer.Typer, list[Any]]:
    """A command line with the options of the policy, and the options that it was given."""
    app, stated = typer.Typer(), []

    @app.command()
    @with_options(option_class(StricterPolicy))
    def set_policy(*, options: Any) -> None:
        stated.append(options)

    return app, stated


def test_new_rule_is_an_option_of_the_command():
    app, stated = make_command()
    assert "--most-sums" in typed(app, "--help").stdout
    typed(app, "--most-sums", "3", "--approval", "each")
    assert changes_of(StricterPolicy, stated[0]) == {"most_sums": 3, "approval": "each"}


def test_omitted_option_leaves_its_policy_rule_unchanged():
    app, stated = make_command()
    typed(app)
    assert changes_of(StricterPolicy, stated[0]) == {}


def test_new_rule_is_a_field_of_the_form():
    assert form_fields(StricterPolicy)["most_sums"].label == "Most sums of one run"
    assert "most_sums" not in form_fields(HospitalPolicy)
    assert changes_of(StricterPolicy, option_class(StricterPolicy)(most_sums="4")) == {"most_sums": 4}
    with pytest.raises(ConfigurationError, match="whole number"):
        changes_of(StricterPolicy, option_class(StricterPolicy)(most_sums="four"))


def test_new_rule_is_validated_and_reported_when_it_is_loosened():
    with pytest.raises(ConfigurationError, match="no sum is allowed"):
        StricterPolicy(most_sums=0)
    before, after = StricterPolicy(), StricterPolicy(most_sums=20)
    assert loosened(before, after) == changed(before, after) == ("most sums: 10 -> 20",)
    assert loosened(after, before) == ()


def test_new_rule_is_signed_with_the_policy():
    assert StricterPolicy().to_json() == {**HospitalPolicy().to_json(), "most_sums": 10}


def test_every_policy_rule_defines_when_it_is_looser():
    for name, rule in rules.rules_of(HospitalPolicy).items():
        value = getattr(HospitalPolicy(), name)
        assert not rule.is_looser(value, value), name
        assert rule.check(value) is None, name


def test_policy_error_lists_the_faults_of_all_rules():
    with pytest.raises(ConfigurationError, match="a budget of 0 parts") as refused:
        HospitalPolicy(total_parts=0, minimum_parties=0)
    assert "the smallest number of parties" in str(refused.value)
