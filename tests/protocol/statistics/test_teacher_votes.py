"""Teachers: one unit moves one shard's votes and no other bit, and what they vote for is nearest to their records."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doubles.pace import examples
from tests.doubles.parties import embed
from undersong_client.records.private import PrivateRecords
from undersong_common.models.embedding import quantise
from undersong_common.privacy import accounting
from undersong_common.text.table import Table
from undersong_protocol import statistics
from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.statistics import LabelledEmbeddings, PublicInputs
from undersong_protocol.statistics.teacher_votes import TeacherVotes, distinct
from undersong_protocol.statistics.teachers import BATCH, LONGEST, Whitening, _train_batch

LABELS = ("x", "y")
KEY = bytes(range(32))
QUERIES, CONTRAST = [f"query {n}" for n in range(12)], [f"public {n}" for n in range(20)]


def labelled(texts):
    return LabelledEmbeddings(embed(texts), np.arange(len(texts), dtype=np.int64) % 2)


PUBLIC = PublicInputs({"queries": labelled(QUERIES), "contrast": labelled(CONTRAST)})


def private(rows, unit="sample", key=KEY):
    """Records of (text, label, user) rows."""
    texts, labels, users = zip(*rows, strict=True)
    most = 1 if unit == "sample" else 8
    return PrivateRecords(Table(texts, labels, users), LABELS, Privacy(1.0, 1e-5, unit, most), key=key, embed=embed)


def shard_votes(statistic, records, public=PUBLIC):
    rows = statistic.rows(records, public, {})
    matrix = rows.take(np.arange(len(rows)))
    return {int(shard): matrix[row].tobytes() for row, shard in enumerate(rows.units)}


ROWS = st.lists(
    st.tuples(st.integers(0, 30).map("note {}".format), st.sampled_from(LABELS), st.integers(0, 9).map(str)),
    min_size=2,
    max_size=40,
)


@pytest.mark.heavy
@settings(max_examples=15, deadline=None)
@given(ROWS, st.booleans(), st.booleans())
def test_teacher_votes_are_zero_or_one_with_one_row_per_shard(rows, half, labels):
    statistic = TeacherVotes(queries=15, teachers=5, labels=2 if labels else 0, half=half)
    memory = {}
    found = statistic.rows(private(rows), PUBLIC, memory)
    matrix = found.take(np.arange(len(found)))
    assert len(set(found.units.tolist())) == len(found) <= 5
    assert set(np.unique(matrix)) <= {0.0, 1.0}
    assert not matrix[:, 12:].any()  # planned, but not published
    if half:
        assert (matrix.sum(axis=1) <= 6).all()
    assert memory == {}  # no teacher, no vote and no record outlives the call


@pytest.mark.slow
@settings(max_examples=examples(3, 8), deadline=None)
@given(st.integers(0, 10_000), st.integers(0, BATCH - 1), st.booleans())
def test_a_teacher_s_parameters_have_no_bit_of_another_shard(seed, changed, emptied):
    """Votes round, so a leak between teachers could hide in them; parameters do not."""
    rng = np.random.default_rng(seed)

    def shard(longest, most=5):
        count = int(rng.integers(0, most))
        rows = rng.normal(size=(count, 10)).astype(np.float32)
        norms = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)
        return (rows / norms * longest).astype(np.float32), rng.integers(0, 3, count)

    against = [rng.normal(size=(int(rng.integers(1, 9)), 10)).astype(np.float32) / 4 for _ in range(3)]
    members = [shard(1.0) if rng.random() < 0.7 else shard(0.0) for _ in range(BATCH)]
    before, bias = _train_batch(members, against, [0, 1, 2])
    members[changed] = (np.zeros((0, 10), np.float32), np.zeros(0, np.int64)) if emptied else shard(LONGEST, 12)
    after, moved = _train_batch(members, against, [0, 1, 2])
    others = np.arange(BATCH) != changed
    assert np.array_equal(before[:, others], after[:, others])
    assert np.array_equal(bias[others], moved[others])


def test_teacher_votes_have_the_documented_sensitivity_and_noise():
    """docs/privacy.md, "Statistics": L2 sqrt(r); 1 000 queries at (3.6, 1e-5) need sigma 37.5."""
    statistic = TeacherVotes(queries=1000, teachers=15)
    assert statistic.sensitivity == statistics.Sensitivity(1000.0, math.sqrt(1000), 1.0)
    plan = plan_sums([SumRequest("teachers", statistic)], Privacy(3.6, 1e-5), Quorum(1, 1, 0, 0))
    assert plan.sums[0].sigma == pytest.approx(37.5, abs=0.05)
    assert accounting.epsilon([accounting.Gaussian(37.5 / math.sqrt(1000))], 1e-5) == pytest.approx(3.6, rel=1e-3)
    assert statistics.build(statistic.name, statistics.parameters(statistic)) == statistic


@settings(max_examples=15, deadline=None)
@given(ROWS, st.sampled_from(["sample", "user"]), st.integers(2, 2 * BATCH), st.data())
@pytest.mark.slow
def test_one_unit_changes_one_shard_and_no_bit_elsewhere(rows, unit, teachers, data):
    """Sample: one record more or less. User: all of theirs. Wherever in the file it stands."""
    gone = data.draw(st.integers(0, len(rows) - 1))
    left = [row for at, row in enumerate(rows) if (at != gone if unit == "sample" else row[2] != rows[gone][2])]
    if not left:
        return
    statistic = TeacherVotes(queries=12, teachers=teachers, labels=2)
    before, after = shard_votes(statistic, private(rows, unit)), shard_votes(statistic, private(left, unit))
    changed = {shard for shard in before.keys() | after.keys() if before.get(shard) != after.get(shard)}
    moved = int(private(rows, unit).unit_hashes[gone] % np.uint64(teachers))  # numpy 1 makes a float of uint64 and int
    assert changed <= {moved}
    if len(before) > len(after):
        assert changed == {moved}


def test_shards_are_secret_disjoint_and_about_equal():
    rows = [(f"note {n}", "x", str(n)) for n in range(2000)]
    shards = private(rows).unit_hashes % np.uint64(20)
    assert (np.abs(np.bincount(shards.astype(int), minlength=20) - 100) < 60).all()  # 6 deviations
    other = private(rows, key=bytes(32)).unit_hashes % np.uint64(20)
    assert 0.01 < (shards == other).mean() < 0.1  # another key, another division
    assert len(set(private(rows, "party").unit_hashes.tolist())) == 1


def test_a_user_s_records_lie_in_one_shard_and_equal_samples_too():
    rows = [(f"note {n}", "x", str(n % 3)) for n in range(8)] + [("note 1", "x", "9")]
    by_user = private(rows, "user").unit_hashes
    assert [len(set(by_user[users].tolist())) for users in ([0, 3, 6], [1, 4, 7], [2, 5], [8])] == [1, 1, 1, 1]
    assert len(set(by_user.tolist())) == 4
    assert private(rows).unit_hashes[1] == private(rows).unit_hashes[8]


def test_duplicate_records_are_dropped_only_within_one_unit():
    rows = [("A  note", "x", "1"), ("a note", "x", "1"), ("a note", "y", "1"), ("a note", "x", "2"), ("b", "x", "2")]
    assert distinct(private(rows, "user")).tolist() == [0, 2, 3, 4]
    assert distinct(private(rows)).tolist() == [0, 1, 2, 3, 4]


def shifted(seed, shift, count=600, width=16, spread=0.15):
    rng = np.random.default_rng(seed)
    base = np.zeros(width)
    base[0] = 0.7
    return quantise(base + shift + spread * rng.normal(size=(count, width)) / 4)


class Shifted:
    """Records of two classes that differ from the candidates in directions of their own."""

    def __init__(self, labels, shifts):
        self.labels = labels
        self.embeddings = np.concatenate(
            [shifted(int(label) * 1000 + n, shifts[label], 1) for n, label in enumerate(labels)]
        )
        self.units = np.arange(len(labels))
        self.texts = ()
        self.unit_hashes = np.random.default_rng(0).integers(0, 2**63, len(labels)).astype(np.uint64)

    def __len__(self):
        return len(self.labels)


def axis(number, size=0.08):
    found = np.zeros(16)
    found[number] = size
    return found


@pytest.mark.heavy
def test_teacher_has_one_direction_a_class_and_a_common_one():
    shifts = {0: axis(1) + axis(3), 1: axis(2) + axis(3)}
    records = Shifted(np.arange(600) % 2, shifts)
    classes = np.arange(600) % 2
    contrast = LabelledEmbeddings(shifted(1, 0.0), classes)
    queries = LabelledEmbeddings(shifted(2, 0.0, 400), classes[:400])
    statistic = TeacherVotes(queries=400, teachers=6, labels=2)
    found = statistic.rows(records, PublicInputs({"queries": queries, "contrast": contrast}), {})
    votes = found.take(np.arange(6)).sum(axis=0)

    def correlation(label, coordinate):
        of = queries.labels == label
        return np.corrcoef(votes[of], queries.values[of][:, coordinate])[0, 1]

    assert correlation(0, 1) > correlation(1, 1) + 0.1
    assert correlation(1, 2) > correlation(0, 2) + 0.1
    assert min(correlation(0, 3), correlation(1, 3)) > 0.35

    boundary = dataclasses.replace(statistic, half=False)
    few = boundary.rows(records, PublicInputs({"queries": queries, "contrast": contrast}), {}).take(np.arange(6))
    assert 0 < few.sum() < 0.5 * votes.sum()  # queries are all public: most lie on that side of every boundary

    alone = Shifted(np.zeros(300, dtype=np.int64), shifts)  # no record of class 1: the common direction has to do
    votes = statistic.rows(alone, PublicInputs({"queries": queries, "contrast": contrast}), {}).take(np.arange(6))
    votes = votes.sum(axis=0)
    assert min(correlation(1, 1), correlation(1, 3)) > 0.3


def test_whitened_candidates_are_centred_by_class_and_bounded():
    rng = np.random.default_rng(0)
    classes = np.arange(300) % 3
    x = quantise(rng.normal(size=(300, 8)) * np.linspace(0.02, 0.3, 8) + np.eye(8)[classes] * 0.5)
    whitening = Whitening(x, classes, 4)
    z = whitening(x, classes)
    assert np.mean(np.linalg.norm(z, axis=1) ** 2) == pytest.approx(1.0, abs=0.05)
    far = whitening(quantise(-np.ones((1, 8))), np.array([3]))
    assert np.linalg.norm(far) <= LONGEST * (1 + 1e-6)
    directions = rng.normal(size=(3, 8))
    whole = Whitening(x, classes, 4)
    products = np.einsum("nd,nd->n", (x - whole.means[classes]) @ whole.axes, directions[classes])
    again = np.einsum("nd,nd->n", z, whole.whitened_direction(directions)[classes])
    inside = np.linalg.norm(z, axis=1) < LONGEST * 0.999
    assert np.allclose(products[inside], again[inside], atol=1e-5)
