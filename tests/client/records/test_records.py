"""Which of a party's records take part: a unit's cap is its own, and one unit more moves no other."""

import pytest

from undersong_client.consent.policy import HospitalPolicy
from undersong_client.records import cautions
from undersong_client.records.private import PrivateRecords
from undersong_common.text.table import Table
from undersong_protocol.agreement.plan import Privacy

KEY = bytes(range(32))


def select_rows(texts, users, privacy):
    table = Table(tuple(texts), None, tuple(users))
    return set(PrivateRecords(table, (), privacy, key=KEY, embed=lambda _: pytest.fail("not asked for")).texts)


@pytest.mark.parametrize("unit", ["sample", "user"])
def test_adding_a_unit_displaces_no_other_even_above_max_records(unit):
    privacy = Privacy(1.0, 1e-5, unit, 1 if unit == "sample" else 2, max_records=5)
    users = [f"patient {number // 3}" for number in range(30)]
    texts = [f"note {number}" for number in range(30)]
    before = select_rows(texts, users, privacy)
    after = select_rows([*texts, "another note"], [*users, "another patient"], privacy)
    assert after - before == {"another note"}
    assert before - after == set()


def test_records_of_a_user_are_capped_whatever_the_order_of_the_file():
    privacy = Privacy(1.0, 1e-5, "user", 2)
    texts, users = [f"note {number}" for number in range(9)], [f"patient {number % 3}" for number in range(9)]
    found = select_rows(texts, users, privacy)
    assert len(found) == 6
    assert select_rows(texts[::-1], users[::-1], privacy) == found


def records_of(table, labels, unit="sample"):
    privacy = Privacy(1.0, 1e-5, unit, 1 if unit == "sample" else 2)
    return PrivateRecords(table, labels, privacy, key=KEY, embed=lambda _: pytest.fail("not asked for"))


def test_unlisted_label_counts_as_none_and_only_the_hospital_is_told():
    table = Table(("a", "b", "c"), ("x", "elsewhere", "y"), None)
    found = records_of(table, ("y", "x"))
    assert found.labels.tolist() == [1, -1, 0]
    assert found.unlisted_labels == 1
    assert cautions.of_run(Privacy(1.0, 1e-5), found, has_users=False) == [
        "1 of 3 records have a label that the task does not list: they would count as records without label,"
        " which no question by label counts"
    ]
    assert records_of(table, ()).unlisted_labels == 0


def test_records_without_user_ids_take_no_part_in_runs_for_users():
    table = Table(("a", "b"), None, None)
    found = records_of(table, (), "user")
    assert (len(found), found.unit_count) == (0, 0)
    assert (
        "the run protects patients, and the data set has no column"
        in cautions.of_run(Privacy(1.0, 1e-5, "user", 2), found, has_users=False)[0]
    )


def test_empty_data_set_gives_a_party_without_units():
    found = records_of(Table((), (), ()), ("x",), "party")
    assert (len(found), found.unit_count) == (0, 0)
    assert "would answer with zeros" in cautions.of_run(Privacy(1.0, 1e-5, "party", 2), found, has_users=True)[0]


@pytest.mark.parametrize(
    ("delta", "declared", "users", "words"),
    [
        (1e-3, 0, 1000, ["number of records", "number of patients"]),
        (1e-3, 0, 999, ["number of records"]),
        (1e-3, 2000, 999, []),
        (1e-3, 100, 150, ["number of records", "has 2000 records", "has 150 patients"]),
        (1e-7, 0, 1000, []),
    ],
)
def test_standing_consent_gives_a_caution_for_each_fact_against_it(delta, declared, users, words):
    table = Table(("a",) * 2000, None, tuple(str(number % users) for number in range(2000)))
    policy = HospitalPolicy(total_delta=delta, declared_units=declared, approval="standing")
    found = cautions.of_standing_consent(policy, table, "patient")
    assert len(found) == len(words), found
    assert all(word in caution for word, caution in zip(words, found, strict=True))


def test_equal_notes_with_different_attributes_have_different_hashes():
    """A subsample's coin follows the hash and a count of equal ones: one sample less would move another one's coin."""
    sexes = ("f", "m", "m", "f")
    table = Table(("no complaint",) * 4, None, None, {"sex": sexes})
    every, fewer = (records_of(each, ()).unit_hashes.tolist() for each in (table, table.take([1, 2, 3])))
    assert every[1:] == fewer
    assert len(set(every)) == 2
