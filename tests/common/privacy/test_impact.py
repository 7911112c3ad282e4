"""The sentences about a promise bound what they say; a hostile file of an audit states nothing in a dossier."""

import json
import math

import pytest
from scipy.stats import norm

from tests.doubles.coded import raises
from undersong_common.errors import ConfigurationError
from undersong_common.privacy import impact
from undersong_common.privacy.accounting import gaussian_mu

SEEN = {"hits": 1, "present": 2, "false_alarms": 0, "absent": 3}
GOOD = {
    "task": "t",
    "method": "m",
    "runs": 1,
    "canaries": 5,
    "epsilon": 2.0,
    "confidence": 0.99,
    "verdicts": [{"attack": "a", "epsilon": 0.1, "detection": SEEN}],
    "faults": [],
}


@pytest.mark.parametrize("delta", [1e-5, 1e-8])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0, 8.0])
def test_gaussian_noise_exceeds_the_stated_odds_no_more_than_stated(epsilon, delta):
    mu = gaussian_mu(epsilon, delta)
    stated = math.log(impact.odds_factor(epsilon, delta))
    assert _chance_of_loss(stated, mu) <= 2 * delta
    assert _chance_of_loss(epsilon, mu) > delta  # for which the odds without the doubling are not the bound
    assert impact.certainty(epsilon, delta) == pytest.approx(1 / (1 + math.exp(-stated)))


def _chance_of_loss(above, mu):
    """The chance that the privacy loss of mu-Gaussian-DP is above a value: it is normal, with mean mu^2 / 2."""
    return math.erfc((above - mu**2 / 2) / mu / math.sqrt(2)) / 2


@pytest.mark.parametrize(
    "written",
    [
        "null",
        "[" * 100_000,
        json.dumps({**GOOD, "epsilon": float("nan")}),
        json.dumps({**GOOD, "runs": -5}),
        json.dumps({**GOOD, "faults": "refuted"}),
        json.dumps({**GOOD, "confidence": 1e300}),
        json.dumps(GOOD).replace('"hits": 1', '"hits": 1e400'),
    ],
)
def test_malformed_audit_results_file_is_refused(tmp_path, written):
    file = tmp_path / "audit.json"
    file.write_text(written)
    with raises(ConfigurationError, "no-audit-result"):
        impact.read_audit(file)


def test_attack_beyond_the_promise_refutes_it_whatever_the_file_says():
    assert "nothing refuted the promise" in impact.audit_section(GOOD).points
    section = impact.audit_section({**GOOD, "verdicts": [{"attack": "a", "epsilon": 9.0, "detection": SEEN}]})
    assert section.loud
    assert all(point.startswith("REFUTED") for point in section.points)


def test_dossier_says_which_epsilon_an_audit_could_have_refuted():
    could = impact.audit_section({**GOOD, "refutable_by_noise": 2.1, "refutable_by_attack": None})
    assert any("refuted epsilon 2.1 and more" in point for point in could.points)
    could_not = impact.audit_section({**GOOD, "refutable_by_noise": None, "refutable_by_attack": None})
    assert any("no epsilon" in point for point in could_not.points)


def test_guess_right_in_99_of_100_cases_is_marked_as_no_protection():
    assert impact.NO_PROTECTION not in impact.whole_budget_of(8.0, 1e-5)
    assert impact.NO_PROTECTION in impact.whole_budget_of(50.0, 1e-3)
    assert impact.NO_PROTECTION in impact.guess(0.99, "one patient")
    assert impact.NO_PROTECTION not in impact.guess(0.989, "one patient")


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 4.0, 8.0])
@pytest.mark.parametrize("share", [0.01, 0.001])
def test_guess_exceeds_the_rare_certainty_in_at_most_the_stated_share(epsilon, share):
    """Compared with the exact law of the loss: normal, with mean mu^2 / 2 if the unit is in, else its opposite."""
    mu, sure = gaussian_mu(epsilon, 1e-5), impact.rare_certainty(epsilon, 1e-5, share)
    log_odds = math.log(sure / (1.0 - sure))
    in_data, not_in_data = norm(mu**2 / 2, mu), norm(-(mu**2) / 2, mu)
    exact = (in_data.sf(log_odds) + in_data.cdf(-log_odds) + not_in_data.sf(log_odds) + not_in_data.cdf(-log_odds)) / 2
    assert 0.0 < exact <= share
