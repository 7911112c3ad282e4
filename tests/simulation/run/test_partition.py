"""One file dealt to parties: no unit's party, and no unit's place in a smaller file, depends on another unit."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doubles.coded import raises
from tests.doubles.pace import examples, slow_after
from tests.doubles.tasks import LABELS, make_replay_task, make_task, write_rows
from undersong.run.records import check_units, deal, private_tables, subsample
from undersong_client.records.private import PrivateRecords
from undersong_common.errors import ConfigurationError
from undersong_common.text.table import Table
from undersong_protocol.agreement.plan import Privacy
from undersong_protocol.statistics.contribution import contribute
from undersong_protocol.statistics.histogram import LabelHistogram
from undersong_protocol.statistics.interface import COUNT_SCALE, PublicInputs
from undersong_server.runs import task as tasks

ALPHAS = (1e-6, 0.05, 1.0, 100.0, math.inf)
# few texts, so that many records are equal
RECORDS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c d", "\udcff"]), st.sampled_from("xyz"), st.sampled_from("1234567")),
    min_size=1,
    max_size=40,
)


def table(records, *, labels=True, users=True):
    texts, names, identities = zip(*records, strict=True) if records else ((), (), ())
    return Table(tuple(texts), tuple(names) if labels else None, tuple(identities) if users else None)


def where(records, *, unit, users, parties, alpha, seed):
    """The party of each record."""
    dealt = deal(table(records, users=users), parties, alpha, seed, unit=unit)
    assert sorted(row for rows in dealt for row in rows) == list(range(len(records)))
    assert all(rows == sorted(rows) for rows in dealt)
    return {row: party for party, rows in enumerate(dealt) for row in rows}


@pytest.mark.heavy
@settings(max_examples=examples(30, 150), deadline=None)
@given(
    records=RECORDS,
    extra=RECORDS,
    at=st.integers(0, 40),
    case=st.sampled_from([("sample", True), ("sample", False), ("user", True), ("party", True), ("party", False)]),
    parties=st.integers(1, 12),
    alpha=st.sampled_from(ALPHAS),
    seed=st.integers(0, 99),
)
def test_one_more_unit_moves_no_other_to_another_party(records, extra, at, case, parties, alpha, seed):
    unit, users = case
    more = extra[:1] if unit == "sample" else [(text, label, "another") for text, label, _ in extra]
    if unit == "party":
        more = [(text, label, more[0][2]) for text, label, _ in more] if users else more[:1]
    shape = {"unit": unit, "users": users, "parties": parties, "alpha": alpha, "seed": seed}
    before = where(records, **shape)
    at = min(at, len(records))
    after = where([*records[:at], *more, *records[at:]], **shape)
    assert before == {
        row if row < at else row - len(more): p for row, p in after.items() if not at <= row < at + len(more)
    }


@settings(max_examples=examples(20, 60), deadline=None)
@given(records=RECORDS, parties=st.integers(1, 12), alpha=st.sampled_from(ALPHAS), seed=st.integers(0, 99))
def test_a_users_records_lie_at_one_party(records, parties, alpha, seed):
    for unit in ("user", "party"):
        found = where(records, unit=unit, users=True, parties=parties, alpha=alpha, seed=seed)
        homes = {user: {found[row] for row, (_, _, its) in enumerate(records) if its == user} for _, _, user in records}
        assert all(len(own) == 1 for own in homes.values())


@pytest.mark.parametrize("unit", slow_after(["sample", "user"], 1))
@settings(max_examples=examples(15, 40), deadline=None)
@given(records=RECORDS, gone=st.integers(0, 39), seed=st.integers(0, 9), alpha=st.sampled_from([0.1, 1.0, math.inf]))
@pytest.mark.heavy
def test_the_opened_sum_moves_by_the_declared_sensitivity_at_most(tmp_path_factory, unit, records, gone, seed, alpha):
    folder = tmp_path_factory.mktemp("dealt")
    path = make_task(folder, parties=1, records=1)
    task = tasks.load(
        path,
        [
            'data.path="all.jsonl"',
            f'privacy.unit="{unit}"',
            "privacy.max_per_user=2",
            "federation.parties=4",
            f"federation.alpha={'inf' if math.isinf(alpha) else alpha}",
            "data.records=3",
            "data.file_records=4",
        ],
    )
    named = [(text, LABELS[label == "x"], user) for text, label, user in records if text != "\udcff"]
    if not named:
        return
    chosen = named[gone % len(named)]
    rest = [one for one in named if one[2] != chosen[2]] if unit == "user" else list(named)
    if unit == "sample":
        rest.remove(chosen)
    if not rest:
        return
    largest = 0
    difference = opened(folder, task, seed, named) - opened(folder, task, seed, rest)
    largest = np.abs(difference).sum()
    # a user's mean weight 1 may be rounded toward zero at each of two labels
    assert largest <= LabelHistogram(2).sensitivity.l1 * COUNT_SCALE


def opened(folder, task, seed, records):
    """The sum of the parties' vectors without noise."""
    rows = [{"text": text, "label": label, "user": user} for text, label, user in records]
    write_rows(folder / "all.jsonl", rows)
    privacy, statistic = task.privacy.promise(), LabelHistogram(len(LABELS))
    total = np.zeros(len(LABELS), dtype=np.int64)
    for number, (_, own) in enumerate(private_tables(task, seed).items()):
        view = PrivateRecords(own, LABELS, privacy, key=bytes([number]) * 32, embed=pytest.fail)
        total += contribute(
            statistic,
            statistic.rows(view, PublicInputs({}), {}),
            scale=COUNT_SCALE,
            unit_contribution=privacy.contribution,
            max_per_unit=privacy.max_per_unit,
        ).values
    return total


def test_small_alpha_deals_labels_less_evenly_than_a_large_one():
    labels = ("a", "b", "c", "d") * 250
    texts = tuple(f"text {number}" for number in range(1000))
    spread = {}
    for alpha in (0.1, 10.0):
        dealt = deal(Table(texts, labels, None), 10, alpha, 3, unit="sample")
        counts = [[sum(labels[row] == name for row in rows) for name in "abcd"] for rows in dealt]
        spread[alpha] = np.std(counts)
    assert spread[0.1] > 2 * spread[10.0]


def test_infinite_alpha_gives_every_party_the_same_share_of_each_label():
    records = [(f"text {number}", "ab"[number % 2], "") for number in range(10_000)]
    found = where(records, unit="sample", users=False, parties=5, alpha=math.inf, seed=0)
    sizes = np.bincount(list(found.values()), minlength=5)
    assert np.abs(sizes - 2000).max() < 5 * math.sqrt(10_000 * 0.2 * 0.8)


def test_more_parties_than_records_leave_some_without_any():
    assert sum(map(bool, deal(table([("a", "x", "1")]), 3, 1.0, 0, unit="sample"))) == 1


@settings(max_examples=examples(20, 60), deadline=None)
@given(records=RECORDS, extra=RECORDS, users=st.booleans(), seed=st.integers(0, 99))
def test_subsample_of_a_file_keeps_each_unit_independently(records, extra, users, seed):
    def kept(of):
        return list(zip(*_columns(subsample(table(of, users=users), 30 / 80, seed)), strict=True))

    more = [(text, label, "another") for text, label, _ in extra] if users else extra[:1]
    assert kept([*records, *more])[: len(kept(records))] == kept(records)


def _columns(of):
    return (of.texts, of.labels, of.users or of.texts)


@pytest.mark.slow
def test_subsample_of_a_file_has_about_as_many_records_as_asked_for():
    whole = table([(f"text {number}", "x", "1") for number in range(5000)], users=False)
    sizes = [len(subsample(whole, 300 / 5000, seed)) for seed in range(20)]
    assert abs(np.mean(sizes) - 300) < 5 * math.sqrt(300 / 20)
    assert len(set(sizes)) > 1
    small, large = (set(subsample(whole, records / 5000, 0).texts) for records in (100, 300))
    assert small < large


def test_subsample_of_a_file_needs_the_public_size_of_the_file(tmp_path):
    path = make_task(tmp_path, parties=1, records=8)
    one = ['data.path="private/site-0.jsonl"', "data.records=4"]
    with pytest.raises(ConfigurationError, match=r"data: .*records needs file_records"):
        tasks.load(path, one)
    with pytest.raises(ConfigurationError, match=r"data: .*records \(4\) is above file_records \(3\)"):
        tasks.load(path, [*one, "data.file_records=3"])
    assert len(private_tables(tasks.load(path, [*one, "data.file_records=4"]), 0)) == 5


def test_curated_data_are_deduplicated_shuffled_and_dealt_equally(tmp_path):
    """Song et al. 2024, 3.4: duplicates go from the whole set, and a shuffle is divided equally."""
    rows = [{"text": f"text {n % 20}", "label": "ab"[n % 2]} for n in range(50)]
    path = make_replay_task(tmp_path, rows)
    changes = ["data.curated=true", "federation.parties=3"]
    tables = private_tables(tasks.load(path, [*changes, "privacy.epsilon=inf"]), 0)
    texts = [text for each in tables.values() for text in each.texts]
    assert sorted(texts) == sorted(f"text {n}" for n in range(20))
    assert sorted(len(each) for each in tables.values()) == [6, 7, 7]
    other = private_tables(tasks.load(path, [*changes, "privacy.epsilon=inf"]), 1)
    assert [each.texts for each in other.values()] != [each.texts for each in tables.values()]
    with pytest.raises(ConfigurationError) as refused:
        private_tables(tasks.load(path, changes), 0)
    assert refused.value.code == "not-private"


def test_curated_data_pool_the_hospitals_files_before_dealing(tmp_path):
    path = make_task(tmp_path, parties=3, records=20)
    repeated = (tmp_path / "private" / "site-0.jsonl").read_text().splitlines()[:4]
    with (tmp_path / "private" / "site-1.jsonl").open("a") as file:
        file.write("\n".join(repeated) + "\n")
    task = tasks.load(path, ["data.curated=true", "federation.parties=5", "privacy.epsilon=inf"])
    tables = private_tables(task, 0)
    assert [len(table) for table in tables.values()] == [12] * 5
    assert task.parties == 5


@pytest.mark.parametrize(("unit", "epsilon"), [("sample", 1.0), ("user", 1.0), ("user", math.inf), ("party", 1.0)])
def test_delta_must_be_below_one_over_the_privacy_units(unit, epsilon):
    privacy = Privacy(epsilon, 1 / 8, unit)
    seven_units, eight_units = ({"north": table([("a", "x", str(user)) for user in range(users)])} for users in (7, 8))
    check_units(privacy, seven_units)
    if unit == "party" or math.isinf(epsilon):
        check_units(privacy, eight_units)
    else:
        with raises(ConfigurationError, "delta-too-large"):
            check_units(privacy, eight_units)
