"""What a party refuses by itself, whoever asks; each reason reaches the operator (reply) and the hospital (log)."""

import dataclasses
import logging
import math

import pytest

from tests.doubles.parties import make_manifest, make_party, make_tables, propose
from undersong_client.consent.approvals import Consent
from undersong_client.consent.policy import HospitalPolicy, review
from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_common.privacy import accounting
from undersong_common.privacy.ledger import Ledger
from undersong_common.privacy.spending import Budget
from undersong_common.text.table import Table
from undersong_protocol import statistics
from undersong_protocol.agreement.bounds import Policy
from undersong_protocol.agreement.manifest import Manifest
from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, plan_sums
from undersong_protocol.secagg.parameters import Member, default_threshold
from undersong_protocol.statistics import LabelHistogram, LengthHistogram
from undersong_protocol.statistics.teacher_votes import TeacherVotes
from undersong_protocol.wire import codec
from undersong_protocol.wire.messages import federation_pb2 as wire

LABELS = ("good", "bad")
QUORUM = Quorum(parties=5, threshold=4, tolerated_dropouts=1, colluders=1)
PRIVACY = Privacy(2.0, 1e-4, max_records=100)
HOSPITAL = Policy(
    largest_epsilon=2.0,
    largest_delta=1e-4,
    minimum_parties=4,
    statistics=frozenset({"label_histogram"}),
    units=frozenset({"sample", "user"}),
)


def plan_of(privacy=PRIVACY, quorum=QUORUM, statistic=None, sums=2):
    statistic = statistic or LabelHistogram(len(LABELS))
    return plan_sums([SumRequest(f"labels/{number}", statistic) for number in range(sums)], privacy, quorum)


@pytest.fixture
def parties(tmp_path):
    tables = make_tables(5, 20, LABELS)
    return {
        name: make_party(tmp_path, name, table, noise_seed=3, policy=HOSPITAL, budget=Budget(2.5, 1e-4))
        for name, table in tables.items()
    }


def signatures_of(parties, manifest: Manifest) -> dict[str, bytes]:
    return {name: propose(party, manifest).signature.signature for name, party in parties.items()}


def reply_to_agreement(party, manifest: Manifest, signatures: dict[str, bytes]) -> wire.Reply:
    request = wire.AgreeManifest(manifest=manifest.to_bytes(), signatures=signatures)
    data = wire.Request(version=codec.VERSION, agree=request).SerializeToString()
    return codec.decode_reply(party.handle(data), party.name)


def agree(parties, manifest: Manifest) -> None:
    signatures = signatures_of(parties, manifest)
    for party in parties.values():
        assert reply_to_agreement(party, manifest, signatures).WhichOneof("body") == "agreed"


def refused(reply: wire.Reply) -> str:
    assert reply.WhichOneof("body") == "refusal", reply
    with pytest.raises(PrivacyRefusal):
        codec.raise_refusal("p0", reply.refusal)
    return reply.refusal.problem


def changed_sum(plan, **changes):
    first, *rest = plan.sums
    return dataclasses.replace(plan, sums=(dataclasses.replace(first, **changes), *rest))


def test_a_run_within_every_bound_is_signed(parties):
    reply = propose(parties["p0"], make_manifest(plan_of(), parties, LABELS))
    assert len(reply.signature.signature) == 64


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (lambda: plan_of(Privacy(2.5, 1e-4, max_records=100)), "asks for epsilon 2.5, more than the policy allows"),
        (lambda: plan_of(Privacy(2.0, 1e-3, max_records=100)), "asks for delta 0.001, the policy allows 0.0001"),
        (lambda: plan_of(Privacy(math.inf, 1e-4, max_records=100)), "asks for epsilon inf"),
        (lambda: plan_of(Privacy(2.0, 1e-4, "party", 100, max_records=100)), "protects one party"),
        (lambda: plan_of(statistic=LengthHistogram(edges=(1, 2, 3))), "does not allow the statistic"),
        # lowered noise: the plan promises 2 and would spend more
        (lambda: changed_sum(plan_of(), sigma_integer=plan_of().sums[0].sigma_integer / 2), "more than the 2"),
    ],
)
def test_plan_beyond_the_policy_or_with_contradictions_is_refused(parties, plan, words, caplog):
    with caplog.at_level(logging.WARNING):
        problem = refused(propose(parties["p0"], make_manifest(plan(), parties, LABELS)))
    assert words in problem
    said = problem.split(", more than the policy allows")[0]
    assert said in caplog.text  # the hospital reads the same words, and its own amounts


FLOOD = {"pairs": 1, "lengths": [1] * 20_000}


def test_policy_refuses_a_plan_before_any_part_of_it_is_built(parties, monkeypatch):
    monkeypatch.setattr(statistics, "build", pytest.fail)
    plan = changed_sum(plan_of(), statistic="fourier_features", parameters=FLOOD)
    assert "does not allow the statistic" in refused(propose(parties["p0"], make_manifest(plan, parties, LABELS)))


def test_policy_limits_are_checked_before_a_plan_is_built_or_priced(parties, monkeypatch):
    manifest = make_manifest(plan_of(Privacy(2.5, 1e-4, max_records=100)), parties, LABELS)
    monkeypatch.setattr(statistics, "build", pytest.fail)
    monkeypatch.setattr(accounting, "epsilon", pytest.fail)
    assert "asks for epsilon 2.5" in refused(propose(parties["p0"], manifest))


@pytest.mark.heavy
@pytest.mark.parametrize(
    "parameters",
    [FLOOD, {"labels": 2**54}, {"labels": float("1e300")}, {"labels": [[1] * 3000]}, {"labels": {"a": -(2**54)}}],
)
def test_a_statistic_s_numbers_are_bounded_before_it_is_built(parties, monkeypatch, parameters):
    manifest = make_manifest(changed_sum(plan_of(), parameters=parameters), parties, LABELS)
    monkeypatch.setattr(statistics, "build", pytest.fail)
    assert "labels/0: parameters" in refused(propose(parties["p0"], manifest))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "figure"),
    [
        (where, figure)
        for where, named in (
            ("privacy", ("epsilon", "max_per_unit", "max_records")),
            ("quorum", ("parties", "threshold", "tolerated_dropouts", "colluders", "spare_attempts")),
            ("sum", ("dimension", "l1", "l2", "linf", "scale", "sigma_integer", "modulus_bits", "sampling_rate")),
            ("sum", ("first_rung_s",)),
        )
        for figure in named
    ],
)
def test_every_number_of_a_plan_is_bounded_before_anything_is_built(parties, monkeypatch, where, figure):
    plan, large = plan_of(Privacy(2.0, 1e-4, "user", 2, max_records=100)), {figure: 2**54}
    if where == "sum":
        plan = changed_sum(plan, **large)
    else:
        plan = dataclasses.replace(plan, **{where: dataclasses.replace(getattr(plan, where), **large)})
    manifest = make_manifest(plan, parties, LABELS)
    monkeypatch.setattr(statistics, "build", pytest.fail)
    assert refused(propose(parties["p0"], manifest))


@pytest.mark.slow
@pytest.mark.parametrize("named", ["", "an empty folder"])
def test_plan_with_fine_tuned_teachers_is_signed_only_with_a_working_model(tmp_path, named):
    (tmp_path / "an empty folder").mkdir()
    parties = {
        name: make_party(tmp_path, name, table, teacher_model=named and str(tmp_path / named))
        for name, table in make_tables(5, 20, LABELS).items()
    }
    statistic = TeacherVotes(queries=9, teachers=3, labels=2)
    reply = propose(parties["p0"], make_manifest(plan_of(statistic=statistic), parties, LABELS))
    assert reply.WhichOneof("body") == "signature"
    fine_tuned = dataclasses.replace(statistic, fine_tuned=True)
    reply = propose(parties["p0"], make_manifest(plan_of(statistic=fine_tuned), parties, LABELS, run="another"))
    with pytest.raises(ConfigurationError, match=r"p0 refuses.*local model"):
        codec.raise_refusal("p0", reply.refusal)
    assert "undersong-party" in reply.refusal.remedy
    assert str(tmp_path) not in str(reply)  # the coordinator need not know this machine's folders
    assert Ledger.read(tmp_path / "p0.ledger.jsonl").charges() == []


def with_quorum(**changes):
    return dataclasses.replace(plan_of(), quorum=dataclasses.replace(QUORUM, **changes))


def test_run_with_fewer_parties_than_the_policy_asks_is_refused(parties):
    three = {name: parties[name] for name in ("p0", "p1", "p2")}
    plan = plan_of(quorum=Quorum(3, 2, 1, 0))
    words = refused(propose(parties["p0"], make_manifest(plan, three, LABELS)))
    assert "may open with 2 parties of 3" in words
    assert "at least 3 other hospitals" in words
    lowered = make_manifest(with_quorum(threshold=2), parties, LABELS)
    assert refused(propose(parties["p0"], lowered))  # 2T <= n + c


@pytest.mark.parametrize(("dropouts", "accepted"), [(1, False), (0, True)])
def test_minimum_parties_bounds_the_survivors_and_not_the_roster(parties, dropouts, accepted):
    """The case: "hospitals of a run: 3" promised two others, and a sum of two opened with one dropout."""
    three = {name: parties[name] for name in ("p0", "p1", "p2")}
    parties["p0"].allow(Policy(**{**vars(HOSPITAL), "minimum_parties": 3}))
    reply = propose(parties["p0"], make_manifest(plan_of(quorum=Quorum(3, 2, dropouts, 0)), three, LABELS))
    if accepted:
        assert reply.WhichOneof("body") == "signature"
    else:
        assert "at least 2 other hospitals" in refused(reply)
        assert "federation.tolerated_dropouts = 0" in reply.refusal.remedy


@pytest.mark.parametrize(
    ("wanted", "post_quantum", "accepted"),
    [
        ("always", False, False),
        ("always", True, True),
        ("never", False, True),
        ("never", True, True),
    ],
)
def test_run_whose_masks_are_not_post_quantum_is_refused(parties, wanted, post_quantum, accepted):
    parties["p0"].allow(Policy(**{**vars(HOSPITAL), "require_post_quantum": wanted}))
    reply = propose(parties["p0"], make_manifest(with_quorum(post_quantum=post_quantum), parties, LABELS))
    if accepted:
        assert reply.WhichOneof("body") == "signature"
    else:
        assert "the run's masks are not post-quantum" in refused(reply)


def reviewed(parties: int, policy: Policy, colluders: int = 0, *, post_quantum: bool) -> None:
    roster = tuple(Member(f"p{number:03d}", (number + 2).to_bytes(32, "little")) for number in range(parties))
    quorum = Quorum(parties, default_threshold(parties, colluders), 0, colluders, post_quantum=post_quantum)
    plan = plan_of(Privacy(math.inf, 1e-4), quorum, sums=1)
    manifest = Manifest("run", {"name": "task", "labels": LABELS}, "wasp", "00" * 32, roster, plan)
    review(manifest, policy, name="p000", identity=(2).to_bytes(32, "little"), embedder="00" * 32)


@pytest.mark.parametrize("parties", [4, 200, 201])
def test_invented_parties_do_not_make_classical_masks_acceptable(parties):
    """The rule once counted the roster's keys: 4 hospitals and 197 invented ones got classical masks."""
    assert HospitalPolicy().require_post_quantum == "always"
    policy = Policy(math.inf, require_post_quantum=HospitalPolicy().require_post_quantum)
    with pytest.raises(PrivacyRefusal, match="not post-quantum"):
        reviewed(parties, policy, post_quantum=False)
    reviewed(parties, Policy(math.inf), post_quantum=False)


@pytest.mark.parametrize(
    "wrong",
    [{"require_post_quantum": "up_to_200"}, {"minimum_colluders": "few"}, {"units": 3}, {"largest_delta": None}],
)
def test_malformed_shared_policy_cannot_be_read(wrong):
    with pytest.raises(ValueError):  # noqa: PT011 - of the reader's own kinds
        Policy.from_json(Policy(2.0).to_json() | wrong)


@pytest.mark.parametrize(
    ("least", "parties", "colluders", "accepted"),
    [
        ("default", 3, 0, True),
        ("default", 4, 0, False),
        ("default", 4, 1, True),
        (2, 7, 1, False),
        (2, 7, 2, True),
        (0, 7, 0, True),
    ],
)
def test_run_with_fewer_colluders_than_the_policy_demands_is_refused(least, parties, colluders, accepted):
    policy = Policy(math.inf, minimum_colluders=least)
    assert Policy.from_json(policy.to_json()) == policy
    if accepted:
        reviewed(parties, policy, colluders, post_quantum=True)
    else:
        with pytest.raises(PrivacyRefusal, match="colluding"):
            reviewed(parties, policy, colluders, post_quantum=True)


def test_policy_demands_the_default_number_of_colluders_unless_changed():
    assert HospitalPolicy().bounds.minimum_colluders == "default"
    with pytest.raises(ConfigurationError):
        HospitalPolicy(minimum_colluders=-1)


def test_plan_switch_that_is_not_a_boolean_is_refused(parties):
    plan = with_quorum(post_quantum=1)
    assert "quorum.post_quantum" in refused(propose(parties["p0"], make_manifest(plan, parties, LABELS)))


@pytest.mark.parametrize("changes", [{"threshold": 3}, {"tolerated_dropouts": 2}, {"colluders": 3}])
def test_quorum_with_inconsistent_numbers_is_refused(parties, changes):
    assert refused(propose(parties["p0"], make_manifest(with_quorum(**changes), parties, LABELS)))


def test_a_budget_that_is_exceeded_refuses_the_run_before_anything_is_sent(parties, tmp_path):
    first = make_manifest(plan_of(), parties, LABELS, run="first")
    agree(parties, first)
    ledger = parties["p0"]._ledger
    for planned in first.plan.sums:
        ledger.charge(parties["p0"]._make_charge(first, planned.name, 0))
    second = make_manifest(plan_of(), parties, LABELS, run="second")
    reply = propose(parties["p0"], second)
    problem = refused(reply)
    assert "the budget of this data set does not allow this run" in problem
    assert "2.5" not in problem + reply.refusal.remedy  # an amount that the hospital does not share
    assert "its budget is 2.5" in next(iter(parties["p0"]._notes.refusals))  # its own people read it
    assert "signature" not in {propose(parties["p0"], second).WhichOneof("body")}


def test_run_proposed_again_with_another_roster_is_refused(parties):
    assert propose(parties["p0"], make_manifest(plan_of(), parties, LABELS)).WhichOneof("body") == "signature"
    four = {name: parties[name] for name in ("p0", "p1", "p2", "p3")}
    other = make_manifest(plan_of(quorum=Quorum(4, 3, 0, 1)), four, LABELS)
    assert "another manifest already" in refused(propose(parties["p0"], other))


def test_a_roster_without_this_partys_own_key_is_refused(parties):
    manifest = make_manifest(plan_of(), parties, LABELS)
    members = [dataclasses.replace(m, identity=b"\2" * 32) if m.name == "p0" else m for m in manifest.roster]
    forged = dataclasses.replace(manifest, roster=tuple(members))
    assert "own name and key" in refused(propose(parties["p0"], forged))


def test_a_roster_with_one_identity_key_twice_is_refused(parties):
    manifest = make_manifest(plan_of(), parties, LABELS)
    *members, fourth, fifth = manifest.roster
    doubled = (*members, fourth, dataclasses.replace(fifth, identity=fourth.identity))
    forged = dataclasses.replace(manifest, roster=doubled)
    assert "share one identity key" in refused(propose(parties["p0"], forged))


@pytest.mark.parametrize("signature", [None, b"", bytes(64)])
def test_a_manifest_that_a_party_has_not_signed_is_not_agreed_on(parties, signature):
    manifest = make_manifest(plan_of(), parties, LABELS)
    signatures = signatures_of(parties, manifest)
    del signatures["p4"]
    if signature is not None:
        signatures["p4"] = signature
    reply = reply_to_agreement(parties["p0"], manifest, signatures)
    assert "has not signed this manifest" in reply.refusal.problem
    assert "not agreed on" in refused(open_sum(parties["p0"], manifest, "labels/0"))


def open_sum(party, manifest, name, attempt=0, payload=b""):
    request = wire.OpenSum(manifest_hash=manifest.hash, sum=name, attempt=attempt, payload=payload)
    data = wire.Request(version=codec.VERSION, open_sum=request).SerializeToString()
    return codec.decode_reply(party.handle(data), party.name)


def test_request_for_a_sum_outside_the_plan_is_refused(parties):
    manifest = make_manifest(plan_of(), parties, LABELS)
    agree(parties, manifest)
    assert "'labels/9' is not in the approved plan" in refused(open_sum(parties["p0"], manifest, "labels/9"))


def test_a_manifest_that_was_never_agreed_on_is_refused(parties):
    manifest = make_manifest(plan_of(), parties, LABELS)
    assert "not agreed on" in refused(open_sum(parties["p0"], manifest, "labels/0"))
    propose(parties["p0"], manifest)
    assert "not agreed on" in refused(open_sum(parties["p0"], manifest, "labels/0"))


def test_a_proposal_is_answered_alike_whatever_the_records_are(tmp_path):
    """Labels outside the list, more units than 1 / delta, no record, no user ids: the reply is the same signature."""
    tables = {
        "as planned": make_tables(1, 20, LABELS)["p0"],
        "other labels": make_tables(1, 20, ("elsewhere", "bad"))["p0"],
        "too many": make_tables(1, 12_000, LABELS)["p0"],
        "empty": Table((), (), ()),
        "no columns": Table(("a note",), None, None),
    }
    replies = set()
    for name, table in tables.items():
        (tmp_path / name).mkdir()
        held = {**make_tables(5, 20, LABELS), "p0": table}
        parties = {each: make_party(tmp_path / name, each, own) for each, own in held.items()}
        privacy = Privacy(2.0, 1e-4, "user", 3, max_records=100)
        replies.add(propose(parties["p0"], make_manifest(plan_of(privacy), parties, LABELS)).SerializeToString())
    assert len(replies) == 1
    assert codec.decode_reply(replies.pop(), "p0").WhichOneof("body") == "signature"


def test_plan_s_delta_must_be_below_one_over_the_declared_units(parties):
    party = parties["p0"]
    party.allow(Policy(**{**vars(HOSPITAL), "declared_units": 10_000}))
    problem = refused(propose(party, make_manifest(plan_of(), parties, LABELS)))
    assert "delta 0.0001, which is not below 1 / 10000" in problem
    party.allow(Policy(**{**vars(HOSPITAL), "declared_units": 9_999}))
    assert propose(party, make_manifest(plan_of(), parties, LABELS)).WhichOneof("body") == "signature"


@pytest.mark.parametrize("labels", [["a", ["b"]], "ab", ["a", "a"], [1], {"a": 1}])
def test_labels_that_are_no_list_of_distinct_names_are_refused(parties, labels):
    manifest = dataclasses.replace(make_manifest(plan_of(), parties, LABELS), task={"name": "t", "labels": labels})
    assert "label" in refused(propose(parties["p0"], manifest))


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_per_unit": 0}, "max_per_unit"),
        ({"max_per_unit": 1.5}, "max_per_unit"),
        ({"max_per_unit": 2}, "which is one record"),
        ({"max_records": True}, "max_records"),
        ({"unit": "note"}, "unit"),
        ({"unit": ["user"]}, "unit"),
        ({"contribution": "all"}, "contribution"),
        ({"delta": 0.0}, "delta"),
        ({"delta": "1e-5"}, "delta"),
        ({"epsilon": -1.0}, "epsilon"),
    ],
)
def test_malformed_privacy_parameters_are_refused_before_a_record_is_read(parties, changes, words):
    plan = dataclasses.replace(plan_of(), privacy=dataclasses.replace(PRIVACY, **changes))
    assert words in refused(propose(parties["p0"], make_manifest(plan, parties, LABELS)))


class Undecided(Consent):
    """Consent that somebody else gives or takes."""

    def __init__(self) -> None:
        self.reason = "waits for a person"
        self.withdrawn = False

    def reason_to_wait(self, manifest):
        return self.reason

    def refused(self, manifest, reason):
        self.objection = reason

    def check(self, manifest):
        if self.withdrawn:
            raise PrivacyRefusal("the consent was withdrawn")


def test_run_waits_for_consent_and_stops_when_it_is_withdrawn(parties):
    party, consent = parties["p0"], Undecided()
    party._rules = dataclasses.replace(party._rules, consent=consent)
    manifest = make_manifest(plan_of(), parties, LABELS)
    assert propose(party, manifest).pending.reason == "waits for a person"
    assert party._store.get(f"run/{manifest.run}") is None  # nothing was signed
    consent.reason = ""
    agree(parties, manifest)
    consent.withdrawn = True
    assert "withdrawn" in refused(open_sum(party, manifest, "labels/0"))


def test_a_refused_run_does_not_wait_for_consent(parties):
    party, consent = parties["p0"], Undecided()
    party._rules = dataclasses.replace(party._rules, consent=consent)
    assert refused(propose(party, make_manifest(plan_of(Privacy(2.5, 1e-4, max_records=100)), parties, LABELS)))
    assert consent.objection == "the run asks for epsilon 2.5, the policy allows 2"
    assert list(party._notes.refusals) == [consent.objection]
