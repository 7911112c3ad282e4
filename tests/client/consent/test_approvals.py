"""What people decided holds for one plan, is signed, and cannot be forged or taken back into an approval."""

import dataclasses
import json
from types import SimpleNamespace

import pytest

from tests.doubles.coded import raises
from tests.doubles.party_home import command
from tests.doubles.sheets import blank_sheet
from undersong_client import keys
from undersong_client.consent import approvals, policy, trust
from undersong_client.consent.approvals import MOST_PLANS, Proposals
from undersong_client.consent.differences import _sum_changes, differences
from undersong_client.consent.people import ROLES_OF_TWO, Person, PersonalDecision
from undersong_client.consent.policy import HospitalPolicy
from undersong_client.home import PartyHome, PartySettings, write_json
from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_protocol.agreement import enrolment
from undersong_protocol.agreement import manifest as manifests
from undersong_protocol.agreement.bounds import Policy
from undersong_protocol.agreement.manifest import Manifest
from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.secagg.parameters import Member
from undersong_protocol.statistics import LabelHistogram


def manifest(run="first", epsilon=2.0):
    plan = plan_sums([SumRequest("labels", LabelHistogram(2))], Privacy(epsilon, 1e-5), Quorum(1, 1, 0, 0))
    task = {"name": "t", "labels": ["a", "b"]}
    return Manifest(run, task, "test", "00" * 32, (Member("alpha", bytes(range(32))),), plan)


@pytest.fixture
def home(tmp_path):
    made = PartyHome.create(tmp_path / "home", PartySettings(party="alpha"))
    keys.create(made)
    policy.write(made, HospitalPolicy())
    return made


@pytest.fixture
def consent(home):
    return Proposals(home, clock=lambda: 5.0)


def test_new_policy_allows_no_run(home):
    fresh = policy.read(home)
    assert not fresh.has_budget
    assert fresh.coordinators == ()
    assert fresh.bounds.largest_epsilon == 0.0
    assert fresh.bounds.statistics == frozenset()


def test_hospital_policy_passes_each_rule_to_the_bound_of_its_name():
    fingerprint = "0001-0203-0405-0607-0809-0a0b-0c0d-0e0f"
    rules = HospitalPolicy(
        statistics=("label_histogram",),
        units=("user",),
        minimum_parties=4,
        run_epsilon=3.0,
        total_epsilon=9.0,
        total_delta=1e-6,
        declared_units=700,
        required_parties=(f"beta={fingerprint}",),
        require_post_quantum="never",
        minimum_colluders=2,
    )
    assert rules.bounds == Policy(
        largest_epsilon=3.0,
        largest_delta=1e-6,
        minimum_parties=4,
        statistics=frozenset({"label_histogram"}),
        units=frozenset({"user"}),
        declared_units=700,
        required_parties=(("beta", fingerprint),),
        require_post_quantum="never",
        minimum_colluders=2,
    )


def test_coordinator_file_s_values_are_read_into_fields_of_their_names(home, authority):
    certificate, signing_key = authority.pem, authority.signing.public_key().public_bytes_raw()
    fingerprint = enrolment.coordinator_fingerprint(certificate, signing_key)
    facts = {"name": "clinics", "addresses": ("one.example:7443", "two.example:7444"), "server_name": "inner.example"}
    keys_of_it = {"ca_certificate": certificate, "fingerprint": fingerprint}
    write_json(home.coordinator, {**facts, **keys_of_it, "signing_key": signing_key.hex()})
    assert trust.coordinator(home) == trust.TrustedCoordinator(**facts, **keys_of_it, signing_key=signing_key)


def test_plan_differences_name_parties_that_left_came_or_changed_key():
    def with_roster(**numbers):
        roster = tuple(Member(name, bytes([number]) * 32) for name, number in numbers.items())
        return dataclasses.replace(manifest(), roster=roster)

    told = differences(with_roster(a=1, b=2, c=3), with_roster(a=1, b=5, d=4))
    came, changed = (enrolment.party_fingerprint(name, bytes([number]) * 32) for name, number in (("d", 4), ("b", 5)))
    assert [change for change in told if "party" in change] == [
        "without the party c",
        f"with the party of fingerprint {came}, d",
        f"another identity key, of fingerprint {changed}, for the party b",
    ]


def test_changed_sums_are_listed_in_the_order_of_statistic_names():
    names = ["a", "c", "e", "b", "d", "f", "h", "g"]
    sums = [SimpleNamespace(statistic=name, dimension=3) for name in names]
    before, after = (SimpleNamespace(plan=SimpleNamespace(sums=part)) for part in ((), tuple(sums)))
    told = _sum_changes(before, after)
    assert [change for change in told if "times" in change] == [f"{name} 0 times -> 1 times" for name in sorted(names)]
    assert told[:2] == ["private sums 0 -> 8", "numbers in all 0 -> 24"]


def test_a_run_waits_until_a_person_approves_it(home, consent):
    wanted, requests = manifest(), Proposals(home)
    assert "waits for the approval" in consent.reason_to_wait(wanted)
    with raises(PrivacyRefusal, "plan-pending"):
        consent.check(wanted)
    (request,) = requests.all()
    assert (request.run, request.epsilon, request.parties, request.decision) == ("first", 2.0, 1, "pending")
    assert requests.manifest_bytes(request) == wanted.to_bytes()
    requests.decide(requests.find("first"), "approved", at=6.0)
    assert consent.reason_to_wait(wanted) == ""
    consent.check(wanted)


def test_stored_proposal_has_its_plan_s_facts_and_the_time_of_each_step(home):
    roster = tuple(Member(name, bytes([number]) * 32) for number, name in enumerate(("alpha", "beta", "gamma")))
    plan = plan_sums([SumRequest("labels", LabelHistogram(2))], Privacy(2.5, 1e-6), Quorum(3, 2, 1, 0))
    wanted = Manifest("spring", {"name": "t", "labels": ["a", "b"]}, "wasp", "00" * 32, roster, plan)
    requests = Proposals(home)
    received = requests.receive(wanted, at=7.0)
    facts = (received.run, received.manifest, received.epsilon, received.delta, received.parties, received.method)
    assert facts == ("spring", wanted.hash.hex(), 2.5, 1e-6, 3, "wasp")
    assert received.words == manifests.plan_words(wanted.hash)
    assert (received.number, received.replaced, received.changes) == (1, False, ())
    sheet = blank_sheet(run="spring")
    requests.previewed(received, sheet, at=8.0)
    requests.decide(received, "rejected", reason="not now", at=9.0)
    shown = requests.find("spring")
    assert (shown.received_s, shown.previewed_s, shown.decided_s) == (7.0, 8.0, 9.0)
    assert (shown.suspended_s, shown.ended_s, shown.restored_s) == (0.0, 0.0, 0.0)
    assert (shown.previewed_sheet, shown.previewed_parts) == (sheet.hash, sheet.part_hashes)
    assert (shown.decision, shown.reason) == ("rejected", "not now")


def test_plan_that_is_proposed_again_stops_being_suspended(home, consent):
    plan = manifest("spring")
    consent.receive(plan, at=1.0)
    consent.suspended(plan.hash, is_suspended=True)
    assert consent.find("spring").suspended_s == 5.0
    assert consent.receive(plan, at=2.0).suspended_s == 0.0
    assert consent.find("spring").received_s == 1.0


def test_replaced_plan_that_is_proposed_again_stops_being_suspended(home, consent):
    plan = manifest("spring")
    consent.receive(plan, at=1.0)
    consent.suspended(plan.hash, is_suspended=True)
    consent.receive(manifest("spring", epsilon=1.0), at=2.0)
    assert consent.receive(plan, at=3.0).suspended_s == 0.0


def test_requests_are_listed_in_the_order_in_which_they_came(home):
    requests = Proposals(home)
    runs = ["e", "b", "d", "a", "f", "c"]
    for time_s, run in enumerate(runs, start=1):
        requests.receive(manifest(run), at=float(time_s))
    assert [request.run for request in requests.all()] == runs
    requests.receive(manifest("a", epsilon=1.0), at=3.5)  # between two others
    assert [request.run for request in requests.all()] == ["e", "b", "d", "a", "a", "f", "c"]
    assert [request.number for request in requests.under("a")] == [1, 2]


def test_run_name_means_the_last_plan_that_has_the_asked_decision(home):
    requests = Proposals(home)
    for time_s, epsilon in enumerate((1.0, 2.0, 3.0), start=1):
        plan = manifest("spring", epsilon)
        requests.decide(requests.receive(plan, at=float(time_s)), "approved", at=float(time_s))
    requests.receive(manifest("spring", 4.0), at=4.0)
    assert requests.find("spring").epsilon == 4.0
    assert requests.find("spring", decision="approved").epsilon == 3.0
    assert requests.find("spring", decision="rejected").epsilon == 4.0


def test_first_of_two_approvals_is_signed_and_lapses_if_the_sheet_changes(home, consent):
    wanted, requests = manifest(), Proposals(home)
    consent.reason_to_wait(wanted)
    request = requests.find("first")

    def approve(name, role, sheet):
        person = Person(name, role)
        return requests.decide(request, "approved", at=6.0, sheet=sheet, person=person, roles=ROLES_OF_TWO)

    assert approve("Ada", "privacy officer", blank_sheet(run="another")).decision == "pending"
    assert approve("Bert", "IT", blank_sheet()).decision == "pending"  # Ada has read another sheet
    with raises(PrivacyRefusal, "plan-pending"):
        consent.check(wanted)
    sheet_with_people = blank_sheet(people=(PersonalDecision("Bert", "IT"),))
    assert approve("Ada", "privacy officer", sheet_with_people).decision == "approved"
    consent.check(wanted)
    path = home.requests / f"{wanted.hash.hex()}.json"
    path.write_text(path.read_text().replace("Bert", "Carl"))
    with raises(PrivacyRefusal, "not-signed"):
        consent.check(wanted)


@pytest.mark.parametrize(("approved_s", "restored_s"), [(6.0, 7.0), (6.0, 1e9), (1e9, 7.0)])
def test_first_of_two_approvals_from_before_a_restore_never_counts(home, consent, approved_s, restored_s):
    """Also where either time was read while the clock was ahead; who approves later counts at once."""
    requests = Proposals(home)
    consent.reason_to_wait(manifest())

    def approve(name, role, at):
        person, request = Person(name, role), requests.find("first")
        return requests.decide(
            request, "approved", at=at, sheet=blank_sheet(), person=person, roles=ROLES_OF_TWO
        ).decision

    assert approve("Ada", "privacy officer", approved_s) == "pending"
    files = requests.saved_files()
    for name in files:
        (home.requests / name).unlink()
    assert requests.bring_back(files, at=restored_s) == 1
    assert approve("Bert", "IT", 8.0) == "pending"
    assert approve("Ada", "privacy officer", 9.0) == "approved"
    consent.check(manifest())


@pytest.mark.parametrize("clock_s", [0.0, -5.0, 8.0])
def test_one_person_cannot_revive_a_restored_approval_by_the_clock(home, consent, clock_s):
    """The attack: at exactly 0 by the clock, the approval that came back no longer counted as restored."""
    requests = Proposals(home)
    consent.reason_to_wait(manifest())

    def approve(name, role, at):
        person, request = Person(name, role), requests.find("first")
        return requests.decide(request, "approved", at=at, sheet=blank_sheet(), person=person, roles=ROLES_OF_TWO)

    approve("Ada", "privacy officer", 6.0)
    assert approve("Bert", "IT", 6.0).decision == "approved"
    files = requests.saved_files()
    for name in files:
        (home.requests / name).unlink()
    requests.bring_back(files, at=7.0)
    assert approve("Ada", "privacy officer", clock_s).is_open
    with raises(PrivacyRefusal, "plan-pending"):
        consent.check(manifest())
    assert consent.reason_to_wait(manifest()).startswith("waits")
    approve("Bert", "IT", clock_s)
    consent.check(manifest())


def change_request(home, wanted, **changes):
    """Changes fields of a stored request by hand."""
    path = home.requests / f"{wanted.hash.hex()}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_unsigned_approval_does_not_count_as_one_of_two(home, consent):
    wanted, requests = manifest(), Proposals(home)
    consent.reason_to_wait(wanted)
    ada = PersonalDecision("Ada", "privacy officer", account="ada", decision="approved", at_s=6.0)
    change_request(home, wanted, people=[dataclasses.asdict(ada)])

    def decide(decision):
        person = Person("Bert", "IT", account="bert")
        return requests.decide(requests.find("first"), decision, at=7.0, person=person, roles=ROLES_OF_TWO)

    with raises(PrivacyRefusal, "not-signed"):
        decide("approved")
    assert requests.find("first").decision == "pending"
    assert decide("rejected").decision == "rejected"


def test_approval_copied_from_another_plan_is_refused(home, consent):
    requests = Proposals(home)
    for wanted in (manifest(), manifest("second")):
        consent.reason_to_wait(wanted)
    ada, bert = Person("Ada", "privacy officer", account="ada"), Person("Bert", "IT", account="bert")
    signed = requests.decide(requests.find("second"), "approved", at=6.0, person=ada, roles=ROLES_OF_TWO)
    people = [dataclasses.asdict(person) for person in signed.people]
    change_request(home, manifest(), people=people, signature=signed.signature)
    with raises(PrivacyRefusal, "not-signed"):
        requests.decide(requests.find("first"), "approved", at=7.0, person=bert, roles=ROLES_OF_TWO)


@pytest.mark.parametrize("is_whole", [False, True])
def test_time_at_which_an_approval_was_restored_is_signed(home, consent, is_whole):
    wanted, requests = manifest(), Proposals(home)
    consent.reason_to_wait(wanted)
    ada, bert = Person("Ada", "privacy officer", account="ada"), Person("Bert", "IT", account="bert")
    for person in (ada, bert)[: 1 + is_whole]:
        requests.decide(requests.find("first"), "approved", at=6.0, person=person, roles=ROLES_OF_TWO)
    files = requests.saved_files()
    for name in files:
        (home.requests / name).unlink()
    requests.bring_back(files, at=7.0)
    assert requests.is_signed(requests.find("first"))
    for time_s in (0.0, 5.0):
        change_request(home, wanted, restored_s=time_s)
        with raises(PrivacyRefusal, "not-signed"):
            if is_whole and not time_s:
                requests.check(wanted)
            else:
                requests.decide(requests.find("first"), "approved", at=8.0, person=bert, roles=ROLES_OF_TWO)


def test_plan_is_found_by_its_hash_although_another_run_is_named_so(home, consent):
    wanted, requests = manifest(), Proposals(home)
    for each in (wanted, manifest(wanted.hash.hex())):
        consent.reason_to_wait(each)
    requests.decide(requests.find(wanted.hash.hex()), "approved", at=6.0)
    assert requests.find("first").decision == "approved"
    assert requests.decide(requests.find(wanted.hash.hex()), "revoked", at=7.0).run == "first"


def test_rejection_and_withdrawal_keep_their_reason_and_cannot_be_undone(home, consent):
    wanted, requests = manifest(), Proposals(home)
    consent.reason_to_wait(wanted)
    requests.decide(requests.find("first"), "rejected", at=6.0, reason="too much")
    with pytest.raises(PrivacyRefusal, match=r"its people have rejected run .*: too much"):
        consent.reason_to_wait(wanted)
    with raises(ConfigurationError, "was-refused"):
        requests.decide(requests.find("first"), "approved", at=7.0)
    other = manifest("second")
    consent.reason_to_wait(other)
    with raises(ConfigurationError, "not-approved"):
        requests.decide(requests.find("second"), "revoked", at=7.0)
    requests.decide(requests.find("second"), "approved", at=7.0)
    with raises(ConfigurationError, "is-approved"):
        requests.decide(requests.find("second"), "rejected", at=7.0)
    requests.decide(requests.find("second"), "revoked", at=8.0)
    with raises(PrivacyRefusal, "plan-revoked"):
        consent.check(other)


def test_standing_policy_approves_a_plan_without_a_person(home, consent):
    policy.change(home, approval="standing")
    assert consent.reason_to_wait(manifest()) == ""
    consent.check(manifest())
    assert Proposals(home).find("first").reason == "standing policy"
    policy.change(home, approval="each")
    assert consent.reason_to_wait(manifest("second")) != ""


def test_an_approval_holds_for_one_plan_and_another_one_is_a_new_request(home, consent, caplog):
    approved, other = manifest(), manifest(epsilon=3.0)
    consent.reason_to_wait(approved)
    requests = Proposals(home)
    requests.decide(requests.find("first"), "approved", at=6.0)
    with raises(PrivacyRefusal, "not-approved"):
        consent.check(other)
    assert "waits" in consent.reason_to_wait(other)
    assert "ANOTHER PLAN than before: epsilon 2 -> 3" in caplog.text
    old, new = requests.under("first")
    assert (old.decision, old.replaced, new.decision, new.number) == ("approved", True, "pending", 2)
    assert (new.changes[0], new.epsilon) == ("epsilon 2 -> 3", 3.0)
    with raises(PrivacyRefusal, "plan-pending"):
        consent.check(other)
    # what was approved is what may be signed, and nothing else
    consent.check(approved)
    assert consent.reason_to_wait(approved) == ""
    assert "waits" in consent.reason_to_wait(other)


def test_a_revision_says_what_differs_from_the_run_that_was_decided(home, consent):
    consent.reason_to_wait(manifest())
    requests = Proposals(home)
    requests.decide(requests.find("first"), "rejected", at=6.0, reason="too much")
    plain = manifest("second", epsilon=1.0)
    consent.reason_to_wait(dataclasses.replace(plain, task={**plain.task, "revises": "first"}))
    revision = requests.find("second")
    assert (revision.revises, revision.decision, revision.number) == ("first", "pending", 1)
    assert revision.changes[0] == "epsilon 2 -> 1"
    assert requests.find("first").decision == "rejected"
    stranger = manifest("third", epsilon=1.5)
    consent.reason_to_wait(dataclasses.replace(stranger, task={**stranger.task, "revises": "never proposed here"}))
    assert (requests.find("third").revises, requests.find("third").changes) == ("", ())
    with pytest.raises(PrivacyRefusal):
        dataclasses.replace(plain, task={**plain.task, "revises": "a\u202eb"}).check_names()


def test_decision_counts_for_the_plan_shown_and_no_later_one(home, consent):
    consent.reason_to_wait(manifest())
    requests = Proposals(home)
    meant = requests.find("first")
    consent.reason_to_wait(manifest(epsilon=3.0))
    with raises(ConfigurationError, "replaced"):
        requests.decide(meant, "approved", at=6.0)
    assert [each.decision for each in requests.under("first")] == ["pending", "pending"]


def test_approval_with_the_words_of_another_plan_is_refused(home, consent):
    requests = Proposals(home)
    consent.reason_to_wait(manifest())
    first = requests.find("first")
    requests.check_words(first, first.words.upper().replace(" ", ", "))
    for wrong in ("", " ".join(first.words.split()[:8]), " ".join(reversed(first.words.split()))):
        with raises(PrivacyRefusal, "other-words"):
            requests.check_words(first, wrong)
    consent.reason_to_wait(manifest(epsilon=0.1))
    with pytest.raises(PrivacyRefusal, match=r"CHANGED since: epsilon 2 -> 0\.1"):
        requests.check_words(requests.find("first"), first.words)


def test_plan_words_edited_into_the_request_file_are_refused(home, consent):
    consent.reason_to_wait(manifest())
    path = next(home.requests.glob("*.json"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"words": "acid"}))
    with pytest.raises(PrivacyRefusal):
        Proposals(home).check_words(Proposals(home).find("first"), "acid")


def test_plan_with_the_same_words_as_another_plan_is_refused(home, consent, monkeypatch):
    monkeypatch.setattr(manifests, "plan_words", lambda hash_: "acid acorn action")
    consent.reason_to_wait(manifest())
    for run in ("first", "second"):
        with raises(PrivacyRefusal, "words-in-use"):
            consent.reason_to_wait(manifest(run, epsilon=0.5))
    assert len(Proposals(home).all()) == 1


def test_a_plan_is_compared_with_the_one_that_people_have_seen_last(home, consent):
    requests = Proposals(home)
    consent.reason_to_wait(manifest(epsilon=1.0))
    consent.reason_to_wait(manifest(epsilon=1.5))
    assert requests.find("first").changes[0] == "epsilon 1 -> 1.5"
    consent.reason_to_wait(manifest(epsilon=1.6))  # nobody has looked at 1.5: the step must not look small
    assert requests.find("first").changes[0] == "epsilon 1 -> 1.6"
    requests.previewed(requests.find("first"), blank_sheet(), at=6.0)
    consent.reason_to_wait(manifest(epsilon=2.0))
    assert requests.find("first").changes[0] == "epsilon 1.6 -> 2"
    consent.reason_to_wait(manifest(epsilon=1.6))  # the seen one again: nothing is new, and it stands again
    assert requests.find("first").changes == ()
    assert [each.replaced for each in requests.under("first")] == [True, True, True, False]


def test_a_plan_seen_while_the_clock_was_ahead_counts_as_not_seen(home, consent):
    requests = Proposals(home, clock=lambda: 9.0)
    consent.reason_to_wait(manifest(epsilon=1.0))
    requests.previewed(requests.find("first"), blank_sheet(), at=1e9)
    consent.reason_to_wait(manifest(epsilon=1.5))
    requests.previewed(requests.find("first"), blank_sheet(), at=8.0)
    requests.reason_to_wait(manifest(epsilon=1.6))
    assert requests.find("first").changes[0] == "epsilon 1.5 -> 1.6"


@pytest.mark.heavy
def test_number_of_plans_under_one_run_name_is_bounded(home, consent):
    for number in range(MOST_PLANS):
        consent.reason_to_wait(manifest(epsilon=1.0 + number / 10))
    with raises(PrivacyRefusal, "too-many-plans"):
        consent.reason_to_wait(manifest(epsilon=9.0))
    kept = [
        each.number for each in Proposals(home).under("first") if (home.requests / f"{each.manifest}.manifest").exists()
    ]
    assert kept == [1, MOST_PLANS]  # the one that it is compared with, and the one that stands


def test_a_run_that_has_ended_is_not_approved_again(home, consent):
    consent.reason_to_wait(manifest())
    requests = Proposals(home)
    requests.decide(requests.find("first"), "approved", at=6.0)
    consent.ended(manifest().hash)
    with raises(ConfigurationError, "run-ended"):
        requests.decide(requests.find("first"), "approved", at=7.0)


def test_decisions_made_at_once_by_daemon_and_commands_are_all_kept(home, consent):
    wanted, requests = manifest(), Proposals(home)
    consent.reason_to_wait(wanted)
    stale = requests.find("first")
    requests.decide(stale, "approved", at=6.0)
    consent.refused(wanted, "the budget is spent")  # read and written after the decision
    assert requests.find("first").decision == "approved"
    requests.decide(stale, "revoked", at=7.0)  # the stale value says pending: what stands in the file counts
    assert requests.find("first").decision == "revoked"


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (lambda m: dataclasses.replace(m, method="dpga"), "method test -> dpga"),
        (lambda m: dataclasses.replace(m, task={**m.task, "labels": ["a", "c"]}), "labels a, b -> a, c"),
        (lambda m: dataclasses.replace(m, task={**m.task, "name": "u"}), "task t -> u"),
        (lambda m: dataclasses.replace(m, task={**m.task, "description": "other"}), "description none -> other"),
        (
            lambda m: dataclasses.replace(m, task={**m.task, "full_names": {"alpha": "A, B"}}),
            "full name of alpha none -> A, B",
        ),
        (lambda m: dataclasses.replace(m, embedder="11" * 32), "the embedding model"),
        (lambda m: dataclasses.replace(m, roster=(Member("alpha", bytes(32)),)), "another identity key, of"),
        (lambda m: dataclasses.replace(m, roster=(Member("beta", bytes(32)),)), "without the party alpha"),
        (lambda m: _privacy(m, unit="user", max_per_unit=4), "privacy unit sample -> user"),
        (lambda m: _privacy(m, delta=2e-5), "delta 1e-05 -> 2e-05"),
        (lambda m: _privacy(m, epsilon=2.0000000001), "epsilon 2.0 -> 2.0000000001"),
        (lambda m: _quorum(m, colluders=1), "parties that may collude 0 -> 1"),
        (lambda m: _quorum(m, post_quantum=False), "post-quantum masks"),
        (lambda m: _more_sums(m), "private sums 1 -> 2"),
    ],
)
def test_every_difference_between_two_plans_is_named(changed, says):
    found = differences(manifest(), changed(manifest()))
    assert any(line.startswith(says) for line in found), found
    assert differences(manifest(), manifest()) == ()


def _privacy(before, **changed):
    plan = dataclasses.replace(before.plan, privacy=dataclasses.replace(before.plan.privacy, **changed))
    return dataclasses.replace(before, plan=plan)


def _quorum(before, **changed):
    plan = dataclasses.replace(before.plan, quorum=dataclasses.replace(before.plan.quorum, **changed))
    return dataclasses.replace(before, plan=plan)


def _more_sums(before):
    sums = (*before.plan.sums, dataclasses.replace(before.plan.sums[0], name="again"))
    return dataclasses.replace(before, plan=dataclasses.replace(before.plan, sums=sums))


@pytest.mark.parametrize("forged", ["decision", "signature"])
def test_an_approval_that_was_written_by_hand_is_refused(home, consent, forged):
    wanted, requests = manifest(), Proposals(home)
    consent.reason_to_wait(wanted)
    path = next(home.requests.glob("*.json"))
    if forged == "signature":
        requests.decide(requests.find("first"), "approved", at=6.0)
        value = json.loads(path.read_text()) | {"reason": "better"}
    else:
        value = json.loads(path.read_text()) | {"decision": "approved"}
    path.write_text(json.dumps(value))
    for ask in (consent.reason_to_wait, consent.check):
        with raises(PrivacyRefusal, "not-signed"):
            ask(wanted)


def test_plan_beyond_the_policy_is_shown_as_refused_and_not_as_pending(home, consent):
    wanted, requests = manifest(), Proposals(home)
    consent.refused(wanted, "asks for epsilon 2, the policy allows 1")
    (request,) = requests.all()
    assert (request.objection, request.undecided) == ("asks for epsilon 2, the policy allows 1", False)
    shown = command("requests", "--json", "--home", home.path)
    assert json.loads(shown)["requests"][0]["objection"] == request.objection
    assert "REFUSED" in command("requests", "--home", home.path)
    # the policy was widened: the guard objects no more, and a person decides
    assert "waits" in consent.reason_to_wait(wanted)
    assert requests.find("first").undecided


def test_another_manifest_that_is_refused_leaves_the_first_ones_approval(home, consent):
    wanted, requests = manifest(), Proposals(home)
    consent.reason_to_wait(wanted)
    requests.decide(requests.find("first"), "approved", at=6.0)
    consent.refused(manifest(epsilon=3.0), "has another manifest already")
    consent.check(wanted)
    assert requests.find("first", decision="approved").manifest == wanted.hash.hex()
    assert (requests.find("first").objection, requests.find("first").undecided) == (
        "has another manifest already",
        False,
    )


def test_a_flood_of_proposals_is_refused(home, consent, monkeypatch):
    monkeypatch.setattr(approvals, "MOST_PENDING", 10)
    plain = manifest()
    for number in range(10):
        consent.reason_to_wait(dataclasses.replace(plain, run=f"run {number}"))
    with raises(PrivacyRefusal, "too-many-pending"):
        consent.reason_to_wait(dataclasses.replace(plain, run="one more"))
    consent.reason_to_wait(dataclasses.replace(plain, run="run 1"))


def test_undecided_ended_runs_are_not_pending_and_only_few_are_kept(home, consent, monkeypatch):
    monkeypatch.setattr(approvals, "MOST_PENDING", 4)
    plain = manifest()
    for number in range(12):
        proposed = dataclasses.replace(plain, run=f"run {number:02}")
        consent.reason_to_wait(proposed)
        consent.ended(proposed.hash) if number % 2 else consent.suspended(proposed.hash, is_suspended=True)
    assert len(Proposals(home).all()) <= 6
    assert "waits" in consent.reason_to_wait(dataclasses.replace(plain, run="one more"))
    assert [each.run for each in Proposals(home).all() if each.undecided] == ["one more"]


def test_a_run_is_found_by_name_or_by_the_beginning_of_its_hash(home, consent):
    wanted = manifest("../../etc/passwd")
    consent.reason_to_wait(wanted)
    requests = Proposals(home)
    assert requests.find(wanted.hash.hex()[:8]) == requests.find("../../etc/passwd")
    with raises(ConfigurationError, "unknown-run"):
        requests.find("nothing")
    assert all(path.parent == home.requests for path in home.requests.iterdir())


def test_a_damaged_manifest_is_not_shown(home, consent):
    consent.reason_to_wait(manifest())
    next(home.requests.glob("*.manifest")).write_bytes(b"{}")
    with raises(ConfigurationError, "damaged"):
        Proposals(home).manifest_bytes(Proposals(home).find("first"))


def test_a_policy_that_was_changed_by_hand_is_refused(home):
    policy.change(home, total_epsilon=1.0, run_epsilon=1.0)
    value = json.loads(home.policy.read_text())
    value["policy"]["run_epsilon"] = 100
    home.policy.write_text(json.dumps(value))
    with raises(PrivacyRefusal, "policy-not-signed"):
        policy.read(home)


@pytest.mark.parametrize(
    "changes",
    [
        {"total_epsilon": 1.0, "run_epsilon": 2.0},
        {"total_epsilon": float("nan")},
        {"total_epsilon": -1.0},
        {"total_delta": 0.0},
        {"minimum_parties": 0},
        {"approval": "never"},
        {"units": ("planet",)},
    ],
)
def test_policy_with_contradictory_or_invalid_rules_is_refused(home, changes):
    with pytest.raises(ConfigurationError):
        policy.change(home, **changes)
    assert policy.read(home) == HospitalPolicy()


def test_refused_proposal_with_malformed_figures_is_not_kept(home, consent):
    wanted = manifest()
    for figures in ({"delta": {"x": 1}}, {"delta": "1e-5"}, {"epsilon": [1]}, {"max_per_unit": 10**300}):
        plan = dataclasses.replace(wanted.plan, privacy=dataclasses.replace(wanted.plan.privacy, **figures))
        consent.refused(dataclasses.replace(wanted, plan=plan), "refused")
    assert not list(home.requests.glob("*.*json*")) + list(home.requests.glob("*.manifest"))
    consent.refused(wanted, "refused")
    assert [each.objection for each in Proposals(home).all()] == ["refused"]


@pytest.mark.parametrize(
    "changes", [{"delta": {"x": 1}}, {"epsilon": [1]}, {"run": 7}, {"received_s": None}, {"more": 1}]
)
def test_malformed_request_file_does_not_hide_other_requests(home, consent, changes):
    consent.reason_to_wait(manifest("first"))
    consent.reason_to_wait(manifest("second"))
    path = home.requests / f"{manifest('first').hash.hex()}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    assert [each.run for each in Proposals(home).all()] == ["second"]


def test_refused_proposals_do_not_count_as_pending(home, consent, monkeypatch):
    monkeypatch.setattr(approvals, "MOST_PENDING", 3)
    for number in range(10):
        consent.refused(manifest(f"refused {number}"), "refused")
    assert len(Proposals(home).all()) <= 4  # the newest are kept, and only so many
    for number in range(3):
        assert "waits for the approval" in consent.reason_to_wait(manifest(f"wanted {number}"))
    with pytest.raises(PrivacyRefusal):
        consent.reason_to_wait(manifest("one more"))
