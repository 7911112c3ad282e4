"""A policy that an earlier release signed, with trust in statistics of other packages, which has no effect any more."""

import json

import pytest

from tests.doubles.coded import raises
from tests.doubles.party_home import HashedEmbedder, command, joined, sign_former_trust
from undersong_client.consent import policy
from undersong_client.consent.policy_file import former_trust
from undersong_client.home import PartyHome
from undersong_common.errors import PrivacyRefusal
from undersong_common.models.embedding import Embedder

NAME = "sentence_histogram"


@pytest.fixture
def home(tmp_path, authority, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(Embedder, "load", lambda *_: HashedEmbedder())
    return joined(tmp_path, authority)


def test_policy_without_trusted_former_statistics_gives_no_notice(home):
    assert former_trust(PartyHome(home)) == ""
    sign_former_trust(home)
    assert former_trust(PartyHome(home)) == ""


def test_policy_that_trusts_former_statistics_stays_valid_as_signed(home):
    before = policy.read(PartyHome(home))
    signed = sign_former_trust(home, NAME, "another")
    assert policy.read(PartyHome(home)) == before
    sentence = former_trust(PartyHome(home))
    assert f"({NAME}, another)" in sentence
    assert command("status", "--home", home, code=6).count(sentence) == 1
    assert json.loads(command("status", "--home", home, "--json", code=6))["former_trust"] == sentence
    assert "trusted_statistics" not in json.loads(command("policy", "show", "--home", home, "--json"))
    assert (home / "policy.json").read_bytes() == signed


def test_setting_the_policy_removes_the_trust_in_former_statistics(home):
    sign_former_trust(home, NAME)
    command("policy", "set", "--minimum-parties", 3, "--home", home)
    assert former_trust(PartyHome(home)) == ""
    assert NAME not in (home / "policy.json").read_text()
    assert NAME not in command("status", "--home", home, code=6)


def test_changing_trusted_statistics_by_hand_makes_the_policy_invalid(home):
    signed = sign_former_trust(home, NAME)
    (home / "policy.json").write_bytes(signed.replace(NAME.encode(), b"label_histogram"))
    with raises(PrivacyRefusal, code="policy-not-signed"):
        policy.read(PartyHome(home))
    assert former_trust(PartyHome(home)) == ""


def test_names_of_formerly_trusted_statistics_are_shown_escaped(home):
    sign_former_trust(home, "\x1b[2Jnothing\n" + "x" * 1000)
    sentence = former_trust(PartyHome(home))
    assert sentence.isprintable()
    assert len(sentence) < 800
