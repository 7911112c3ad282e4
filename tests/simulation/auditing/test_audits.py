"""The audits every build can run, through the real masked sum: variance, membership, correlation
(docs/privacy.md, "Audits")."""

import math
import os

import numpy as np
import pytest
import scipy

from tests.doubles.identities import make_identity, public_identity
from undersong_common.privacy import accounting
from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.secagg import coordinator
from undersong_protocol.secagg.parameters import Member, SumParameters, defaults
from undersong_protocol.secagg.party import PartyMachine, WantsInput
from undersong_protocol.statistics import TopQVotes
from undersong_protocol.statistics.vectors import GridVector

QUESTION = bytes(32)
ALARM = 1e-3  # 99.9 % Clopper-Pearson bounds


def masked_sum(vectors, sigma, *, query="q", attempt=0, lost=()):
    """Opens one real private sum of int64 vectors; parties in ``lost`` vanish before they send their vectors."""
    n = len(vectors)
    threshold, dropouts, colluders = defaults(n)
    parameters = SumParameters(
        manifest_hash=bytes(32),
        run="audit",
        query=query,
        attempt=attempt,
        roster=tuple(Member(f"p{i}", public_identity(i)) for i in range(n)),
        threshold=threshold,
        tolerated_dropouts=dropouts,
        colluders=colluders,
        dimension=len(vectors[0]),
        modulus_bits=40,
        sigma=sigma,
    )
    machines = {f"p{i}": PartyMachine.open(parameters, f"p{i}", make_identity(i), os.urandom) for i in range(n)}
    rounds = coordinator.private_sum(parameters, lambda: QUESTION)
    requests = next(rounds)
    masked = {}
    while True:
        replies = {}
        for name, request in requests.items():
            step = machines[name].receive(request)
            if isinstance(step, WantsInput):
                if name in lost:
                    continue
                step = machines[name].provide(GridVector(vectors[int(name[1:])]), QUESTION)
                masked[name] = step.payload
            replies[name] = step.payload
        try:
            requests = rounds.send(replies)
        except StopIteration as stop:
            return stop.value, masked


@pytest.mark.heavy
@pytest.mark.parametrize("lost", [(), ("p2",)])
def test_opened_sum_is_the_integer_sum_plus_noise_of_planned_variance(lost):
    n, d, sigma = 6, 20_000, 300.0
    rng = np.random.default_rng(1)
    vectors = [rng.integers(-1000, 1000, d) for _ in range(n)]
    ratios = []
    for attempt in range(3):  # 60 000 coordinates: the band of 2 % is then 3.5 deviations of the estimate wide
        opened, _ = masked_sum(vectors, sigma, lost=lost, attempt=attempt)
        survivors = [vector for i, vector in enumerate(vectors) if f"p{i}" not in lost]
        noise = opened.values - np.sum(survivors, axis=0)
        assert opened.variance == pytest.approx(sigma**2 * len(survivors) / (len(survivors) - 1), rel=1e-9)
        assert abs(noise.mean()) < 5 * math.sqrt(opened.variance / d)
        ratios.append(noise.var() / opened.variance)
    assert 0.98 < np.mean(ratios) < 1.02


def test_masked_vectors_look_uniform_and_hide_equal_inputs():
    """Chi-square of the bytes of packed masked vectors; false alarm 1e-6."""
    n, d = 4, 20_000
    opened, masked = masked_sum([np.zeros(d, dtype=np.int64)] * n, 3.0 * math.sqrt(6))
    assert np.abs(opened.values).max() < 100
    for payload in masked.values():
        counts = np.bincount(np.frombuffer(payload[200:-200], dtype=np.uint8), minlength=256)
        expected = counts.sum() / 256
        statistic = float(((counts - expected) ** 2 / expected).sum())
        assert statistic < 255 + 5.5 * math.sqrt(2 * 255)


def test_noise_is_not_correlated_over_rounds_or_parties():
    n, d, sigma = 4, 20_000, 200.0
    zeros = [np.zeros(d, dtype=np.int64)] * n
    first, masked_first = masked_sum(zeros, sigma, attempt=0)
    second, masked_second = masked_sum(zeros, sigma, attempt=1)
    rows = [first.values.astype(float), second.values.astype(float)]
    assert abs(np.corrcoef(rows)[0, 1]) < 4 / math.sqrt(d)
    # by what one party contributes: two federations that differ in one party's noise only would share the rest
    words = [
        np.frombuffer(m[200 : 200 + 4 * d], dtype="<u4").astype(float)
        for m in (*masked_first.values(), *masked_second.values())
    ]
    correlations = np.corrcoef(words) - np.eye(len(words))
    assert np.abs(correlations).max() < 5 / math.sqrt(d)


def mu_lower_bound(present, absent, threshold):
    """Gaussian-DP lower bound from canary statistics with and without the canary, 99.9 % Clopper-Pearson."""
    hits, false = int((present > threshold).sum()), int((absent > threshold).sum())
    n, m = len(present), len(absent)
    tpr_low = scipy.stats.beta.ppf(ALARM / 2, hits, n - hits + 1) if hits else 0.0
    fpr_high = scipy.stats.beta.ppf(1 - ALARM / 2, false + 1, m - false) if false < m else 1.0
    return float(scipy.stats.norm.ppf(tpr_low) - scipy.stats.norm.ppf(fpr_high))


def canary_statistics(epsilon, *, halve):
    """Matched-filter statistics of disjoint canary blocks, half of them present, through one real masked sum a batch.

    A canary is a record whose votes are a whole block: the worst neighbour the sensitivity allows.
    """
    q, blocks = 8, 700
    statistic = TopQVotes(q=q, candidates=q)
    threshold, dropouts, colluders = defaults(4)
    plan = plan_sums(
        [SumRequest("votes", statistic)], Privacy(epsilon, 1e-5), Quorum(4, threshold, dropouts, colluders)
    )
    planned = plan.sums[0]
    drawn = planned.drawn_sigma_integer
    weights = 2 ** np.arange(q - 1, -1, -1)
    canary = np.concatenate([weights, weights]) * (planned.scale // 2 ** (q - 1))
    rng = np.random.default_rng(7)
    shown, hidden = [], []
    # Four parties draw a third more variance than is charged, so that fewer blocks often miss half of the deviation.
    for batch in range(24):
        present = rng.random(blocks) < 0.5
        vector = (present[:, None] * canary).reshape(-1).astype(np.int64)
        vectors = [vector, *[np.zeros_like(vector)] * 3]
        opened, _ = masked_sum(vectors, drawn / 2 if halve else drawn, attempt=batch)
        values = opened.values.reshape(blocks, -1) @ canary / np.linalg.norm(canary) / drawn
        shown.append(values[present])
        hidden.append(values[~present])
    return np.concatenate(shown), np.concatenate(hidden), float(np.linalg.norm(canary) / drawn)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1.0, 2.0, 4.0])
def test_the_membership_audit_flags_halved_noise_and_never_the_planned(epsilon):
    mu = accounting.gaussian_mu(epsilon, 1e-5)
    present, absent, signal = canary_statistics(epsilon, halve=False)
    assert signal == pytest.approx(mu, rel=1e-3)
    assert mu_lower_bound(present, absent, mu / 2) <= mu
    present, absent, _ = canary_statistics(epsilon, halve=True)
    assert mu_lower_bound(present, absent, mu / 2) > mu
