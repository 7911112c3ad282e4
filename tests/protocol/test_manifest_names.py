"""No name that a person cannot read whole is ever signed: a manifest with one is refused where it is read. A plan's
words are always the same for its hash, and each try at other ones costs 16 MiB of scrypt.
"""

import dataclasses
import hashlib

import pytest

from tests.doubles.coded import raises
from tests.doubles.forgeries import FORGERIES, harmless
from undersong_common.errors import PrivacyRefusal
from undersong_protocol.agreement import manifest
from undersong_protocol.agreement.manifest import LONGEST_DESCRIPTION, LONGEST_NAME, Manifest
from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.secagg.parameters import Member
from undersong_protocol.statistics import LabelHistogram

PLAN = plan_sums([SumRequest("labels", LabelHistogram(2))], Privacy(1.0, 1e-5), Quorum(1, 1, 0, 0))
TASK = {"name": "triage", "description": "a note", "labels": ["a", "b"]}
GOOD = Manifest("first", TASK, "wasp", "00" * 32, (Member("alpha", bytes(range(32))),), PLAN)


def _sum(**changes):
    return dataclasses.replace(PLAN, sums=(dataclasses.replace(PLAN.sums[0], **changes),))


PLACES = {
    "run": lambda name: {"run": name},
    "task": lambda name: {"task": {**TASK, "name": name}},
    "label": lambda name: {"task": {**TASK, "labels": ["a", name]}},
    "method": lambda name: {"method": name},
    "embedder": lambda name: {"embedder": name},
    "party": lambda name: {"roster": (Member(name, bytes(32)),)},
    "sum": lambda name: {"plan": _sum(name=name)},
    "statistic": lambda name: {"plan": _sum(statistic=name)},
}


def read_back(manifest):
    return Manifest.from_bytes(manifest.to_bytes())


@pytest.mark.heavy
@pytest.mark.parametrize("place", PLACES)
def test_forged_name_in_a_manifest_is_refused_and_shown_escaped(place):
    for wrong in (*(each for each in FORGERIES if "\ud800" not in each), "", "a" * (LONGEST_NAME + 1)):
        with pytest.raises(PrivacyRefusal) as refusal:
            read_back(dataclasses.replace(GOOD, **PLACES[place](wrong)))
        assert harmless(refusal.value.problem), ascii(wrong)


def test_manifest_with_half_a_surrogate_pair_cannot_be_read():
    data = GOOD.to_bytes().replace(b'"run":"first"', b'"run":"a\\ud800"')
    with pytest.raises(PrivacyRefusal, match="cannot be read"):
        Manifest.from_bytes(data)


@pytest.mark.parametrize(
    "task", [{**TASK, "labels": "ab"}, {**TASK, "description": 5}, {"labels": []}, {**TASK, "labels": [["a"]]}]
)
def test_manifest_with_a_malformed_task_description_is_refused(task):
    with pytest.raises(PrivacyRefusal):
        read_back(dataclasses.replace(GOOD, task=task))


@pytest.mark.parametrize(
    "full_names",
    ["Alpha", {"beta": "Beta Hospital"}, {"alpha": ""}, {"alpha": 5}, {"alpha": "a\u202eb"}, {"alpha": "a" * 201}],
)
def test_full_names_unreadable_or_of_parties_not_there_are_refused(full_names):
    with raises(PrivacyRefusal, "full-names"):
        read_back(dataclasses.replace(GOOD, task={**TASK, "full_names": full_names}))


def test_manifest_without_full_names_has_no_key_for_them():
    named = dataclasses.replace(GOOD, task={**TASK, "full_names": {"alpha": "Alpha Hospital, Porto"}})
    assert read_back(named).full_names == {"alpha": "Alpha Hospital, Porto"}
    assert GOOD.full_names == {}
    assert b"full_names" not in GOOD.to_bytes()


def test_task_description_above_the_length_limit_is_refused():
    assert read_back(dataclasses.replace(GOOD, task={**TASK, "description": "a\nb" * 1000})).task["labels"] == [
        "a",
        "b",
    ]
    with pytest.raises(PrivacyRefusal, match="characters"):
        read_back(dataclasses.replace(GOOD, task={**TASK, "description": "a" * (LONGEST_DESCRIPTION + 1)}))


@pytest.mark.parametrize(
    "run",
    [
        "\u05e9\u05dc\u05d5\u05dd",
        "abc \u05d0 1",
        "sp\u0433ing",
        "first ",
        ".first",
        "a" * 121,
        "../first",
        "\u202efirst",
    ],
    ids=ascii,
)
def test_run_name_with_characters_hard_to_type_is_refused(run):
    """Right-to-left letters are shown between marks that are copied with them, and others look like Latin ones."""
    with pytest.raises(PrivacyRefusal):
        read_back(dataclasses.replace(GOOD, run=run))


def test_labels_in_other_scripts_are_accepted():
    labels = ["\u05e9\u05dc\u05d5\u05dd", "\u5fc3\u81d3", "c\u0153ur", "\u0639\u0627\u062c\u0644"]
    assert read_back(dataclasses.replace(GOOD, task={**TASK, "labels": labels})).task["labels"] == labels


def test_plan_words_follow_from_the_hash_at_the_stated_memory_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "hashlib", hashlib)  # the suite makes it cheap (conftest.py)
    assert manifest.plan_words(bytes(32)) == "weasel pencil avocado blend bracket wicker east ripple badge"
    assert 128 * manifest._COST["n"] * manifest._COST["r"] == 16 * 2**20


def test_typed_plan_words_are_compared_without_case_and_punctuation() -> None:
    assert manifest.same_words("Acid, ACORN-action", "acid acorn action")
    assert not manifest.same_words("acid acorn", "acid acorn action")
