"""The agreement on a plan while people decide at different times."""

from types import SimpleNamespace

import pytest

from undersong_protocol.wire.messages import federation_pb2 as wire
from undersong_server.federation import agreement
from undersong_server.progress import Progress

SIGNED = wire.Reply(signature=wire.ManifestSignature(signature=b"signed"))
PENDING = wire.Reply(pending=wire.Pending(reason="waits"))
WITHDRAWN = wire.Reply(
    refusal=wire.Refusal(kind=wire.Refusal.PRIVACY, problem="its people have withdrawn", remedy="talk to its people")
)
SILENT_LATER = wire.Reply(refusal=wire.Refusal(kind=wire.Refusal.LATER, problem="is busy", remedy="wait"))


class Exchange:
    """Answers each party's proposals from its list, in order; None is no answer."""

    def __init__(self, **replies):
        self.replies = replies

    def ask_all(self, parties, **_body):
        answers = {name: self.replies[name].pop(0) for name in parties}
        return {name: reply for name, reply in answers.items() if reply is not None}


def collect_signatures(**replies):
    manifest = SimpleNamespace(
        roster=[SimpleNamespace(name=name) for name in replies],
        to_bytes=lambda: b"plan",
        hash=bytes(32),
        check_signatures=lambda _signatures: None,
    )
    entries = {}
    journal = SimpleNamespace(get_json=entries.get, put_json=entries.__setitem__)
    exchange = Exchange(**replies)
    signatures = agreement.ManifestAgreement(
        manifest, exchange, journal, Progress(), sleep=lambda _pause_s: None
    ).collect_signatures()
    assert signatures.keys() == replies.keys()
    assert "manifest/signatures" in entries
    return exchange


def test_run_stops_when_an_approval_is_withdrawn_before_the_last_one():
    with pytest.raises(agreement.Rejected, match="have withdrawn") as rejected:
        collect_signatures(alpha=[SIGNED, WITHDRAWN], beta=[PENDING, PENDING, SIGNED], gamma=[PENDING, SIGNED, SIGNED])
    assert rejected.value.parties == ("alpha",)
    assert rejected.value.approved == ("beta", "gamma")


@pytest.mark.parametrize("again", [SIGNED, SILENT_LATER, None])
def test_run_begins_with_the_hospitals_that_have_not_withdrawn(again):
    collect_signatures(alpha=[SIGNED, again], beta=[PENDING, SIGNED])


def test_hospital_that_has_approved_is_not_asked_again():
    exchange = collect_signatures(alpha=[SIGNED, WITHDRAWN], beta=[SIGNED])
    assert len(exchange.replies["alpha"]) == 1
