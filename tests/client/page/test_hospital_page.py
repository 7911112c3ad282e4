"""The hospital's page over a real folder: every screen, and what is decided on it."""

import json
import re
import time
from dataclasses import replace
from html import unescape

import pytest

from tests.client.cli.test_cli import proposed, spoken
from tests.common.pages.test_oidc import FakeProvider
from tests.doubles.coded import raises
from tests.doubles.one_page import next_step_of, steps_of
from tests.doubles.pace import slow_after
from tests.doubles.party_home import HashedEmbedder, command, joined, sign_former_trust, write_notes
from tests.doubles.plain_browser import HOST, Browser
from tests.doubles.terminal import type_from
from tests.doubles.typed import typed
from undersong_client.cli.app import app
from undersong_client.cli.options import checkpoints_folder
from undersong_client.consent import policy, two_people
from undersong_client.consent.approvals import Proposals
from undersong_client.consent.people import ROLES_OF_TWO, Person
from undersong_client.consent.rules import DECIDERS, decider_words
from undersong_client.consent.run_terms import REJECT_IS_FINAL
from undersong_client.consent.two_people import check_one_of_two
from undersong_client.home import PartyHome
from undersong_client.keys import secret
from undersong_client.page.application import PartyPaths, build
from undersong_client.storage.store import Store
from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_common.models.embedding import Embedder
from undersong_common.pages.duties import DAY_S, provider_key
from undersong_common.pages.serving import print_link
from undersong_protocol import statistics
from undersong_protocol.agreement.enrolment import EnrolmentRequest

pytestmark = pytest.mark.heavy

SCREENS = ("/", "/requests", "/budget", "/outbox", "/policy", "/check", "/coordinator", "/log", "/account")


@pytest.fixture
def home(tmp_path, authority, monkeypatch):
    monkeypatch.setattr(Embedder, "load", lambda *_: HashedEmbedder())
    return joined(tmp_path, authority)


@pytest.fixture
def page(home):
    made = build(PartyPaths(home, checkpoints_folder(home), home.parent / "daemon.log"), hosts=(HOST,), port=8700)
    made.accounts.set_role("hospital", "administrator")
    yield Browser(made).enter(made.accounts.link("hospital"))
    made.close()


FEWEST = {"minimum_others": "3", "declared_units": "0"}
OFFICER = {"name": "Dr. Ada Lind", "role": "privacy officer"}


def text(answer):
    """What a person reads, without markup."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.text))


@pytest.mark.slow
def test_every_screen_of_a_new_party_loads_and_names_the_next_step(page, home):
    for path in SCREENS:
        answer = page.get(path)
        assert answer.status_code == 200, path
        assert "cannot be shown" not in answer.text or path == "/log", text(answer)
        assert "undersong-party" not in answer.text, path  # the page's own action stands in its place
        assert "Ask IT to start the service" in next_step_of(answer.text), path
    assert "No run waits for a decision" in page.get("/").text
    assert "daemon is not running" in page.get("/").text
    PartyHome(home).check_modes()  # the page's own files are private too


def test_page_s_next_step_follows_waiting_and_decided_requests(page, home, monkeypatch):
    manifest = proposed(home, run="spring")
    address = f"/requests/{manifest.hash.hex()}"
    assert "Read what spring asks for, and decide" in next_step_of(page.get("/").text)
    assert "Approve or reject it; nothing leaves before" in next_step_of(page.get(address).text)
    page.post(f"{address}/approve", OFFICER, words=spoken(manifest))
    assert "Ask IT to start the service" in next_step_of(page.get("/").text)
    monkeypatch.setattr(PartyHome, "is_running", True)
    assert "Wait: spring goes on by itself, and you may withdraw" in next_step_of(page.get(address).text)
    Proposals(PartyHome(home)).ended(manifest.hash)
    assert "Save the evidence of your decisions" in next_step_of(page.get("/").text)
    page.get("/log/evidence.zip")
    assert "Nothing: what waits for you stands on Now" in next_step_of(page.get("/").text)


def test_policy_screen_and_reject_form_say_whom_a_rejection_binds(page, home):
    manifest = proposed(home, run="spring")
    assert REJECT_IS_FINAL in unescape(page.get("/policy").text)
    form = (
        unescape(page.get(f"/requests/{manifest.hash.hex()}").text).partition('id="reject"')[2].partition("</form>")[0]
    )
    assert REJECT_IS_FINAL in form


def test_request_is_approved_by_its_words_and_withdrawn_by_its_name(page, home):
    manifest = proposed(home, run="spring")
    address = f"/requests/{manifest.hash.hex()}"
    assert address in page.get("/").text
    sheet = text(page.get(address))
    assert spoken(manifest) in re.sub(r"</?span[^>]*>", "", page.get(address).text)
    assert "The risk of this run" in sheet
    assert 'class="before"' in page.get(address).text
    listed = re.findall(r'data-name="who">([^<]*)</td><td[^>]*>(?:[0-9a-f]{4}-){7}', page.get(address).text)
    assert listed == ["you (alpha)", "the operator", *(member.name for member in manifest.roster[1:])]
    for words, why in (("", "were not typed"), ("one two three", "are not the words")):
        refused = page.post(f"{address}/approve", OFFICER, words=words)
        assert refused.status_code == 409
        assert why in refused.text
    assert Proposals(PartyHome(home)).find("spring").decision == "pending"
    done = page.post(f"{address}/approve", OFFICER, words=spoken(manifest))
    assert page.led(done) == address
    assert Proposals(PartyHome(home)).find("spring").decision == "approved"
    assert page.post(f"{address}/revoke", OFFICER, of=address, typed="sprung").status_code == 409
    page.post(f"{address}/revoke", OFFICER, of=address, typed="spring", reason="changed our mind")
    assert Proposals(PartyHome(home)).find("spring").decision == "revoked"
    assert "changed our mind" in page.get(address).text
    kinds = [entry.what for entry in page.site.audit.entries() if entry.what != "policy set"]
    assert kinds == ["log in by link", "approve refused", "approve", "revoke"]


def test_sheet_that_changed_before_the_decision_is_shown_again_unsigned(page, home, tmp_path):
    """The attack: budget and records change between the form and its signature; ``despite`` was ticked before."""
    manifest = proposed(home, run="spring")
    address = f"/requests/{manifest.hash.hex()}"
    filled = {**page.hidden(f"{address}/approve"), **OFFICER, "words": spoken(manifest), "despite": "yes"}
    command("budget", "set", "--epsilon", "40", "--delta", "1e-4", "--home", home)
    other = write_notes(tmp_path / "other.jsonl", labels=("good", "elsewhere"))
    fields = ("--label-field", "label", "--user-field", "patient", "--new-version")
    command("data", "add", other, *fields, "--home", home)
    sent = page.client.post(f"{address}/approve", data=filled)
    assert page.led(sent) == f"{address}/approve"
    assert Proposals(PartyHome(home)).find("spring").decision == "pending"
    again = text(page.get(f"{address}/approve"))
    assert "CHANGED since it was shown" in again
    assert "of 40, left" in again
    assert "have a label that the task does not list" in again
    unconfirmed = page.post(f"{address}/approve", OFFICER, words=spoken(manifest))
    assert unconfirmed.status_code == 409  # the caution
    assert page.led(page.post(f"{address}/approve", OFFICER, words=spoken(manifest), despite="yes")) == address
    assert Proposals(PartyHome(home)).find("spring").decision == "approved"


@pytest.mark.slow
def test_sheet_dossier_and_log_name_both_people_who_approved(page, home):
    manifest = proposed(home, run="spring")
    command("policy", "set", "--two-people", "--home", home)
    address = f"/requests/{manifest.hash.hex()}"
    signed = {"words": spoken(manifest)}
    page.site.accounts.set_role("bert", "operator")
    assert "counts for nothing" in text(page.post(f"{address}/approve", OFFICER, **signed))  # a role of one's own box
    for account, duty in (("hospital", "privacy officer"), ("bert", "IT")):
        page.site.accounts.duties.give(account, duty, source="the administrator root")
    for nobody in ({"name": ""}, {"name": "Ada\u202e"}):
        assert page.post(f"{address}/approve", OFFICER | nobody, **signed).status_code == 409
    page.post(f"{address}/approve", OFFICER, comment="as agreed on Monday", **signed)
    assert Proposals(PartyHome(home)).find("spring").decision == "pending"
    second = Browser(page.site).enter(page.site.accounts.link("bert"))
    for same in (OFFICER, {"name": "dr. ada lind", "role": "IT"}):
        assert second.post(f"{address}/approve", same, **signed).status_code == 409
    assert page.post(f"{address}/approve", {"name": "Bert Vos", "role": "IT"}, **signed).status_code == 409
    second.post(f"{address}/approve", {"name": "Bert Vos", "role": "IT"}, **signed)
    request = Proposals(PartyHome(home)).find("spring")
    assert request.decision == "approved"
    stated = [(each.name, each.role, each.comment, each.account) for each in request.people]
    assert stated == [
        ("Dr. Ada Lind", "privacy officer", "as agreed on Monday", "hospital"),
        ("Bert Vos", "IT", "", "bert"),
    ]
    dossier = text(page.get(f"{address}/dossier"))
    assert dossier.index("The guarantee, and what it cost") < dossier.index("Annex") < dossier.index(request.manifest)
    kept = page.get(f"{address}/dossier.html")
    assert "attachment" in kept.headers["content-disposition"]
    for shown in (text(page.get(address)), text(page.get("/log")), dossier, kept.text):
        for words in ("Dr. Ada Lind, privacy officer", "as agreed on Monday", "Bert Vos, IT"):
            assert words in shown
    for shown in (text(page.get(address)), text(page.get("/log")), dossier):
        assert "account bert, logged in by a link, role given by the administrator root" in shown


def with_duties(site, *accounts):
    for account, duty in zip(accounts, ROLES_OF_TWO, strict=True):
        site.accounts.duties.give(account, duty, source="the administrator root")


@pytest.mark.slow
@pytest.mark.parametrize("fewer", slow_after(["each", "standing"], 1))
def test_one_account_alone_cannot_remove_the_rule_of_two_people(page, home, fewer, monkeypatch):
    """The attack: whoever may change the policy took the rule away first, and then signed alone."""
    command("policy", "set", "--two-people", "--home", home)
    fields = {"questions": ["counts"], "units": "user", "run_epsilon": "1", "minimum_others": "3"}
    fields |= {"declared_units": "0", "require_post_quantum": "always"}
    page.site.accounts.set_role("bert", "operator")
    second = Browser(page.site).enter(page.site.accounts.link("bert"))
    with_duties(page.site, "hospital", "bert")

    def rule():
        now = json.loads(command("policy", "show", "--home", home, "--json"))
        return now["two_people"], now["approval"], now["minimum_parties"]

    before = rule()
    for _ in range(2):  # nothing of the form counts, however often one account sends it
        page.post("/policy", fields, approval=fewer, despite="yes")
        assert rule() == before
    assert "hospital has made one that waits for a second person" in text(second.get("/policy"))
    second.post("/policy", fields, approval="two")  # who keeps the rule ends the wish
    assert rule() == (True, "each", 4)
    second.post("/policy", fields, approval=fewer, despite="yes")
    # A day later, and a step of the uptime, below which a sum of floats may fall; before, so that it was stored ahead.
    for passed_s in (DAY_S + 0.01, -60.0):
        now = two_people.instant(time.time)
        later = replace(now, at=now.at + passed_s, up=now.up + passed_s)
        with monkeypatch.context() as another_time:
            another_time.setattr(two_people, "instant", lambda _clock, later=later: later)
            page.post("/policy", fields, approval=fewer, despite="yes")
            assert rule() == (True, "each", 4)
        second.post("/policy", fields, approval={"each": "standing", "standing": "each"}[fewer], despite="yes")
        assert rule() == (True, "each", 4)  # another choice is no agreement
        second.post("/policy", fields, approval=fewer, despite="yes")
    page.post("/policy", fields, approval=fewer, despite="yes")
    assert rule() == (False, fewer, 4)
    noted = [entry for entry in page.site.audit.entries() if entry.what.startswith("policy set")]
    assert "who decides: two people: a privacy officer and one for IT -> " in noted[-1].about
    assert "account hospital" in noted[-1].about


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "fields"),
    slow_after(
        [
            ("/budget", {"epsilon": "40", "delta": "1e-4"}),
            ("/budget", {"epsilon": "4", "delta": "1e-3"}),
            ("/policy", {"run_epsilon": "3"}),
            ("/policy", {"minimum_others": "0"}),
            ("/policy", {"require_post_quantum": "never"}),
            ("/policy", {"units": ["user", "sample"]}),
        ],
        3,
    ),
)
def test_whatever_loosens_the_policy_needs_a_second_person(page, home, path, fields, monkeypatch):
    form = {**FEWEST, "questions": ["counts"], "units": "user", "run_epsilon": "1", "approval": "two"}
    form |= {"require_post_quantum": "always"}
    page.post("/policy", form)
    page.site.accounts.set_role("bert", "operator")
    second = Browser(page.site).enter(page.site.accounts.link("bert"))
    before, wanted = policy.read(PartyHome(home)), form | fields if path == "/policy" else fields
    without_role = page.post(path, wanted)
    assert without_role.status_code == 409
    with_duties(page.site, "hospital", "bert")
    page.post(path, wanted)
    assert policy.read(PartyHome(home)) == before
    type_from(monkeypatch, 30001)
    assert "has no role" in command("budget", "set", "--epsilon", 40, "--delta", "1e-4", "--home", home, code=2)
    second.post(path, wanted)
    assert policy.loosened(before, policy.read(PartyHome(home)))


def test_person_who_let_an_account_in_cannot_be_an_approver_for_a_day(page, home, monkeypatch):
    """The attack: an administrator approves, makes a link to another's account, and approves by it too."""
    manifest = proposed(home, run="spring")
    command("policy", "set", "--two-people", "--home", home)
    accounts = page.site.accounts
    accounts.set_role("bert", "operator")
    with_duties(page.site, "hospital", "bert")
    address, words = f"/requests/{manifest.hash.hex()}/approve", spoken(manifest)
    assert page.post(address, OFFICER, words=words).status_code == 303
    second = Browser(page.site).enter(accounts.link("bert", by=("hospital",)))
    other = {"name": "Bert Vos"}
    assert "none of the two before" in text(second.post(address, other, words=words))
    with monkeypatch.context() as ahead:  # an act that was noted with a clock ahead lasts a day from now, not longer
        ahead.setattr(accounts.duties, "_clock", lambda: time.time() + 400 * DAY_S)
        accounts.duties.note_act(["hospital"])
    assert second.post(address, other, words=words).status_code == 409
    page.site.store.rows("UPDATE act SET up = up - ?", DAY_S)
    assert "stands behind both of you" in text(second.post(address, other, words=words))
    page.site.store.rows("UPDATE account SET let_in_up = let_in_up - ?", DAY_S)
    assert second.post(address, other, words=words).status_code == 303
    assert Proposals(PartyHome(home)).find("spring").decision == "approved"


@pytest.mark.slow
def test_letting_an_account_in_at_a_terminal_blocks_decisions_on_the_page(page, home, monkeypatch):
    """The attack: a person gives a role, or makes a link, at a terminal, and decides by an account of the page."""
    command("policy", "set", "--two-people", "--home", home)
    for name in ("bert", "cleo"):
        page.site.accounts.set_role(name, "operator")
    second = Browser(page.site).enter(page.site.accounts.link("bert"))
    with_duties(page.site, "hospital", "bert")
    type_from(monkeypatch, 30001)
    print_link(PartyHome(home).page, "dora", "administrator")  # as the first start of a page does
    manifest = proposed(home, run="spring")
    address, words = f"/requests/{manifest.hash.hex()}/approve", spoken(manifest)
    acts = (
        lambda: command("policy", "duty", "bert", "IT", "--home", home),
        lambda: print_link(PartyHome(home).page, "cleo", "viewer"),
    )
    by_terminal = page.site.accounts.link("bert", by=("#30001 at the terminal",))  # as each start of a page prints one
    assert page.site.accounts.duties.exclusion(["bert"]) is None
    acts += (lambda: Browser(page.site).enter(by_terminal),)
    for act in acts:
        act()
        for browser, who in ((page, OFFICER), (second, {"name": "Bert Vos"})):
            assert "Nobody here is one of the two before" in text(browser.post(address, who, words=words))
        page.site.store.rows("UPDATE act SET up = up - ?", DAY_S)
        page.site.store.rows("UPDATE account SET let_in_up = let_in_up - ?", DAY_S)
    for browser, who in ((page, OFFICER), (second, {"name": "Bert Vos"})):
        assert browser.post(address, who, words=words).status_code == 303
    assert Proposals(PartyHome(home)).find("spring").decision == "approved"


def test_person_who_makes_a_link_for_themselves_cannot_approve(page, home):
    command("policy", "set", "--two-people", "--home", home)
    manifest = proposed(home, run="spring")
    page.site.accounts.set_role("bert", "operator")
    with_duties(page.site, "hospital", "bert")
    again = Browser(page.site).enter(page.site.accounts.link("hospital", by=("hospital",)))
    refused = again.post(f"/requests/{manifest.hash.hex()}/approve", OFFICER, words=spoken(manifest))
    assert "hospital has given rights" in text(refused)


def test_person_let_in_today_approves_beside_one_let_in_by_another(page, home):
    """One person may stand behind all accounts that an administrator's links let in, and behind no other one."""
    manifest = proposed(home, run="spring")
    command("policy", "set", "--two-people", "--home", home)
    accounts = page.site.accounts
    accounts.set_role("bert", "operator")
    accounts.set_role("cleo", "operator")
    with_duties(page.site, "bert", "cleo")
    address, words = f"/requests/{manifest.hash.hex()}/approve", spoken(manifest)
    first = Browser(page.site).enter(accounts.link("bert", by=("admin",)))
    second = Browser(page.site).enter(accounts.link("cleo", by=("admin",)))
    assert first.post(address, {"name": "Bert Vos"}, words=words).status_code == 303
    assert "admin stands behind both of you" in text(second.post(address, {"name": "Cleo Li"}, words=words))
    other = Browser(page.site).enter(accounts.link("cleo", by=("another",)))
    assert other.post(address, {"name": "Cleo Li"}, words=words).status_code == 303
    assert Proposals(PartyHome(home)).find("spring").decision == "approved"


def test_administrator_gives_an_approver_s_role_but_not_to_themselves(page, home):
    page.site.accounts.set_role("bert", "operator")
    second = Browser(page.site).enter(page.site.accounts.link("bert"))
    assert second.post("/policy/duty", {"account": "bert", "duty": "IT"}, of="/policy").status_code == 403
    assert page.post("/policy/duty", {"account": "hospital", "duty": "IT"}, of="/policy").status_code == 409
    assert page.post("/policy/duty", {"account": "nobody", "duty": "IT"}, of="/policy").status_code == 409
    assert page.post("/policy/duty", {"account": "bert", "duty": "IT"}, of="/policy").status_code == 303
    assert page.site.accounts.duties.of("bert").source == "the administrator hospital"
    assert page.site.accounts.duties.exclusion(["hospital"]).until_s > time.time()


@pytest.mark.slow
def test_person_with_a_local_and_a_provider_account_counts_once(home):
    """The attack: one person approves, and takes the rule away, once by a local and once by the provider's account."""
    site = build(PartyPaths(home, checkpoints_folder(home)), hosts=(HOST,), port=8700)
    groups = {"privacy": "privacy officer", "it": "IT"}
    provider = FakeProvider(home.parent, site=site, roles={"staff": "operator"}, duties=groups)
    site.accounts.set_role("first", "operator")
    local = Browser(site).enter(site.accounts.link("first"))
    site.accounts.duties.give("first", "IT", source="the administrator root")

    def identified(name, group):
        browser = Browser(site)
        claims = {"groups": ["staff", group], "email": f"{name}@hospital.example", "sub": name}
        return browser.entered(provider.entered(browser=browser, **claims).headers["location"])

    ada, bert = identified("ada", "privacy"), identified("bert", "it")
    command("policy", "set", "--two-people", "--home", home)
    manifest = proposed(home, run="spring")
    address, other = f"/requests/{manifest.hash.hex()}", {"name": "Bert Vos", "role": "IT"}

    def approved(browser, who):
        return browser.post(f"{address}/approve", who, words=spoken(manifest), despite="yes").status_code

    assert approved(local, OFFICER) == 409
    assert Proposals(PartyHome(home)).find("spring").people == ()
    assert approved(ada, OFFICER) == 303
    assert approved(local, other) == approved(ada, other) == 409
    # The attack: an administrator's link into the account of the other one.
    by_link = Browser(site).enter(site.accounts.link("bert@hospital.example"))
    assert approved(by_link, other) == 409
    command("preview", "spring", "--home", home)
    typed_there = command("approve", "spring", *spoken(manifest).split(), "--despite-cautions", "--home", home, code=3)
    assert "people of your organisation" in typed_there
    assert Proposals(PartyHome(home)).find("spring").decision == "pending"
    assert approved(bert, other) == 303
    request = Proposals(PartyHome(home)).find("spring")
    assert request.decision == "approved"
    assert [person.subject for person in request.people] == ["ada", "bert"]
    assert [person.role_from for person in request.people] == ["the group privacy", "the group it"]
    form = {**FEWEST, "questions": ["counts"], "units": "user", "run_epsilon": "1", "approval": "each"}
    form |= {"require_post_quantum": "always"}
    for browser, status, two in ((local, 409, True), (ada, 303, True), (by_link, 409, True), (bert, 303, False)):
        assert browser.post("/policy", form).status_code == status
        assert json.loads(command("policy", "show", "--home", home, "--json"))["two_people"] == two
    site.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "other",
    [{"issuer": "http://127.0.0.1:9999"}, {"client": "another"}, None],
    ids=["another provider", "another client", "no provider"],
)
def test_second_page_with_its_own_provider_cannot_fake_a_second_person(home, other):
    """The attack: whoever may start a page starts one with a provider, or a client there, that names them otherwise."""
    groups = {"roles": {"staff": "operator"}, "duties": {"privacy": "privacy officer", "it": "IT"}}

    def site_with(settings):
        site = build(PartyPaths(home, checkpoints_folder(home)), hosts=(HOST,), port=8700)
        return site, None if settings is None else FakeProvider(home.parent, site=site, **groups, **settings)

    def identified(site, provider, name, group):
        claims = {"groups": ["staff", group], "email": f"{name}@hospital.example", "sub": name}
        browser = Browser(site)
        return browser.entered(provider.entered(browser=browser, **claims).headers["location"])

    site, provider = site_with({"issuer": "https://idp.example"})
    ada = identified(site, provider, "ada", "privacy")
    stale_site, stale_provider = site_with(other)  # while one person decides, another page may be started
    if other is None:
        stale_site.accounts.duties.serve_with("")
    elsewhere = None if other is None else identified(stale_site, stale_provider, "ghost", "it")
    again, provider = site_with({"issuer": "https://idp.example:443/"})
    command("policy", "set", "--two-people", "--home", home)
    with raises(ConfigurationError, "other-provider"):
        site_with(other)[0].accounts.duties.serve_with("")
    assert ada.get("/").status_code != 200, "a log-in by another page's provider has ended"
    manifest = proposed(home, run="spring")
    address, who = f"/requests/{manifest.hash.hex()}/approve", {"name": "Bert Vos", "role": "IT"}
    if elsewhere is not None:
        assert elsewhere.get("/").status_code != 200
        assert stale_provider.enter(groups=["staff", "it"]) == 403, "it runs, and lets nobody in any more"
    ada, bert = identified(again, provider, "ada", "privacy"), identified(again, provider, "bert", "it")
    for browser, person in ((ada, OFFICER), (bert, who)):
        assert browser.post(address, person, words=spoken(manifest), despite="yes").status_code == 303
    assert Proposals(PartyHome(home)).find("spring").decision == "approved"
    for made in (site, stale_site, again):
        made.close()


def test_log_in_by_another_issuer_does_not_count_as_an_approver(page, home):
    page.site.accounts.duties.serve_with(provider_key("https://idp.example", "console"))
    ada = Person("Ada", "IT", account="ada", log_in="provider", subject="7", role_from="the group it")
    for issuer in ("https://idp.example/", "https://IDP.example:443"):
        check_one_of_two(PartyHome(home), replace(ada, issuer=issuer), [])
    for issuer in ("", "https://evil.example", "http://idp.example"):
        with raises(PrivacyRefusal, "not-identified"):
            check_one_of_two(PartyHome(home), replace(ada, issuer=issuer), [])
    bert = replace(ada, name="Bert", role="privacy officer", account="bert", subject="8", issuer="https://idp.example")
    with raises(PrivacyRefusal, "not-identified"):
        check_one_of_two(PartyHome(home), bert, [replace(ada, issuer="https://evil.example")])


def test_a_request_says_until_which_sum_another_hospital_took_part(page, home):
    manifest = proposed(home, run="spring")
    address = f"/requests/{manifest.hash.hex()}"
    assert "by the signatures that this hospital checked" not in text(page.get(address)).casefold()
    store = Store(PartyHome(home).journal, "alpha", secret(PartyHome(home), "store"))
    names = [member.name for member in manifest.roster]
    for sum_name, parties in (("labels", names), ("votes/1", [name for name in names if name != "beta"])):
        store.put(f"survivors/{manifest.hash.hex()}/{sum_name}", json.dumps(parties).encode())
    assert "beta took part until sum 1 of 2" in text(page.get(address))


def test_rejection_on_the_page_needs_a_confirmation(page, home):
    address = f"/requests/{proposed(home, run='spring').hash.hex()}"
    assert page.post(f"{address}/reject", OFFICER, of=address, reason="no").status_code == 409
    page.post(f"{address}/reject", OFFICER, of=address, reason="no", sure="yes")
    assert Proposals(PartyHome(home)).find("spring").decision == "rejected"


def test_request_screen_shows_its_other_parts_if_the_sheet_fails(page, home):
    address = f"/requests/{proposed(home, run='spring').hash.hex()}"
    (home / "data.sealed").write_bytes(b"damaged")
    answer = page.get(address)
    assert answer.status_code == 200
    assert "This part cannot be shown" in answer.text
    assert "Remedy" in answer.text
    assert "pending" in answer.text
    alone = page.get(f"{address}?part=decision")
    assert alone.text.lstrip().startswith("<section")


def test_each_part_of_a_request_renews_itself_alone(page, home):
    manifest = proposed(home, run="spring")
    address = f"/requests/{manifest.hash.hex()}"
    for is_approved in (False, True):
        if is_approved:
            page.post(f"{address}/approve", OFFICER, words=spoken(manifest))
            assert Proposals(PartyHome(home)).find("spring").decision == "approved"
        parts = re.findall(r'data-part="(\w+)" hx-get="/s/[^/]+([^"]+)"', page.get(address).text)
        assert {name for name, _ in parts} == {"decision", "next_step"}
        for name, renewal in parts:
            renewed = page.get(unescape(renewal)).text
            assert renewed.count("<section id=") == renewed.count(f'<section id="part-{name}"') == 1
            assert "<main" not in renewed


def test_a_part_that_a_screen_lacks_is_not_answered_by_the_whole_screen(page):
    for asked in ("", "decision"):
        refused = page.get(f"/?part={asked}", headers={"hx-request": "true"})
        assert refused.status_code == 404
        assert refused.json()["code"] == "no-such-part"


@pytest.mark.slow
def test_pause_budget_and_policy_forms_do_what_the_commands_do(page, home):
    page.post("/pause", of="/")
    assert (
        json.loads(command("status", "--home", home, "--json", code=None) or "{}") == {}
        or PartyHome(home).pause.exists()
    )
    page.post("/resume", of="/")
    assert not PartyHome(home).pause.exists()
    page.post("/budget", epsilon="3", delta="1e-5")
    shown = json.loads(command("budget", "show", "--home", home, "--json"))
    assert (shown["epsilon"], shown["delta"], shown["per_run"]) == (3.0, 1e-5, 2.0)
    for wrong in ("nan", "-1", "much"):
        assert page.post("/budget", epsilon=wrong, delta="1e-5").status_code == 409
    fields = {
        "questions": ["counts"],
        "units": "user",
        "run_epsilon": "1",
        "minimum_others": "3",
    }
    chosen = {"require_post_quantum": "always", "minimum_colluders": "2", "share_policy": "yes"}
    page.post("/policy", fields, approval="each", declared_units="0", required_parties="", **chosen)
    policy = json.loads(command("policy", "show", "--home", home, "--json"))
    assert policy["statistics"] == list(statistics.of_question("counts"))
    assert (policy["units"], policy["minimum_parties"], policy["run_epsilon"]) == (["user"], 4, 1.0)
    # What a specialist has chosen of a kind stays when its box does, and goes with it.
    command("policy", "set", "--statistic", "top_q_votes", "--home", home)
    for questions, left in ((["counts", "nearest"], {*policy["statistics"], "top_q_votes"}), ([], set())):
        page.post("/policy", fields | {"questions": questions}, approval="two", declared_units="0", **chosen)
        now = json.loads(command("policy", "show", "--home", home, "--json"))
        assert set(now["statistics"]) == left
        assert now["two_people"]
    assert "This policy allows nothing: no kind of question is allowed." in text(page.get("/policy"))
    assert policy["minimum_colluders"] == 2
    assert (policy["require_post_quantum"], policy["share_policy"], policy["share_budget"]) == ("always", True, False)


@pytest.mark.slow
def test_remedies_on_the_page_name_its_own_forms_and_no_command(tmp_path, monkeypatch):
    monkeypatch.setattr(Embedder, "load", lambda *_: HashedEmbedder())
    command("init", "lonely", "--home", tmp_path / "lonely")
    given = tmp_path / "given"
    given.mkdir()
    places = PartyPaths(tmp_path / "lonely", checkpoints_folder(tmp_path / "lonely"), sources=(given,))
    site = build(places, hosts=(HOST,), port=8700)
    site.accounts.set_role("hospital", "administrator")
    page = Browser(site).enter(site.accounts.link("hospital"))
    for path in SCREENS:
        assert "undersong-party" not in page.get(path).text, path
    led = set(re.findall(r'<strong>Remedy:</strong> <a href="/s/[^/]+(/[a-z]+)"', page.get("/check").text))
    assert {"/coordinator", "/budget"} <= led
    notes = write_notes(given / "notes.jsonl")
    page.post("/budget", epsilon="4", delta="1e-4")
    assert page.post("/budget/data", of="/budget", file=str(given / "none.jsonl")).status_code == 409
    steps = text(page.get("/"))
    assert steps.count("to do") == 4
    assert "Set the budget over all runs done" in steps
    fields = {"file": str(notes), "text_field": "text", "label_field": "label", "user_field": "patient"}
    dated = {**fields, "period": " the year 2024"}
    assert page.led(page.post("/budget/data", dated, of="/budget")) == "/budget"
    assert PartyHome(tmp_path / "lonely").settings.user_field == "patient"
    assert "Period that they cover the year 2024" in text(page.get("/budget"))
    site.accounts.set_role("clerk", "operator")
    secret = write_notes(tmp_path / "secret.jsonl")
    (given / "link.jsonl").symlink_to(secret)
    (given / "folder").symlink_to(tmp_path)
    for folder, name in (("fhir", "Patient.ndjson"), ("parts", "deep/part-0.csv")):
        (given / folder / name).parent.mkdir(parents=True)
        (given / folder / name).symlink_to(secret)
    (given / "exports").mkdir()
    (given / "exports/all").symlink_to(tmp_path)
    for outside in (
        given / "fhir",
        given / "parts",
        given / "exports",
        secret,
        tmp_path / "none",
        "/etc",
        "\0",
        given / "../secret.jsonl",
        given / "link.jsonl",
        given / "folder",
    ):
        refused = page.post("/budget/data", {**fields, "file": str(outside)}, of="/budget")
        assert (refused.status_code, "is in no folder of which this page adds files" in text(refused)) == (409, True), (
            outside
        )
    alike = given / "alike.jsonl"
    alike.write_text(
        "".join(json.dumps({"text": "a note", "label": "a", "patient": name}) + "\n" for name in ("7", "07"))
    )
    asked = text(page.post("/budget/data", {**fields, "file": str(alike)}, of="/budget"))
    assert "1 id differs from another one only by leading zeros" in asked
    for field in ("one patient although they differ", "different patients although they are alike"):
        assert re.search(f'write zeros under "Ids (that are|of) {field}"', unescape(asked))
    assert "--same-patient" not in asked
    wishes = tmp_path / "alike.txt"
    wishes.write_text("0042\n")
    PartyHome(tmp_path / "lonely").change(exclusions=str(wishes))
    listed = given / "listed.jsonl"
    rows = ({"text": "a note", "label": "a", "patient": name} for name in ("42", "8"))
    listed.write_text("".join(json.dumps(row) + "\n" for row in rows))
    against = text(page.post("/budget/data", {**fields, "file": str(listed)}, of="/budget"))
    assert "1 identifier on the list matches an id of the source but for leading zeros" in against
    assert "if they are the same patient: write zeros under" in against
    assert "or tick that you go on despite it" in against
    assert "--" not in against.partition("speak against it")[2].partition("Undersong")[0]
    PartyHome(tmp_path / "lonely").change(exclusions="")
    decided = {**fields, "file": str(alike), "despite": "yes"}
    for kind, other in (("same_patient", "other_patient"), ("other_patient", "same_patient")):
        assert page.led(page.post("/budget/data", {**decided, kind: " zeros"}, of="/budget")) == "/budget"
        choice = PartyHome(tmp_path / "lonely").settings
        assert (list(getattr(choice, kind)), list(getattr(choice, other))) == (["zeros"], [])
    (tmp_path / "wishes.txt").write_text("patient 0\n")
    home = PartyHome(tmp_path / "lonely")
    home.change(exclusions=str(tmp_path / "wishes.txt"), same_patient=["case"])
    again = page.post("/budget/data", fields, of="/budget")  # a new version of the same file
    assert "is in no folder" not in text(again)
    assert (home.settings.same_patient, home.settings.exclusions) == (["case"], str(tmp_path / "wishes.txt"))
    assert "Patients who object 1 in the file, left out" in text(page.get("/budget"))
    assert "2: of patients who object" in text(page.get("/budget"))
    clerk = Browser(site).enter(site.accounts.link("clerk"))
    assert clerk.post("/budget/data", fields, of="/budget").status_code == 403
    site.close()


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    "names",
    slow_after(
        [
            {"file": ""},
            {"file": " \t"},
            {"text_field": ""},
            {"text_field": " "},
            {"file": "."},
            {"file": "out/part.ndjson"},
        ],
        2,
    ),
)
def test_blank_file_name_on_the_page_seals_no_records(page, home, tmp_path, monkeypatch, names, known):
    """The attack: an empty file name sealed the working folder."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "part.ndjson").write_text('{"resourceType": "Patient", "id": "p"}\n')
    monkeypatch.chdir(elsewhere)
    party = PartyHome(home)
    if not known:
        party.change(data="")
    before = party.sealed.read_bytes(), party.settings
    fields = {"file": party.settings.data or "x", "text_field": "text", "label_field": "label", "user_field": "patient"}
    refused = page.post("/budget/data", {**fields, **names, "despite": "yes"}, of="/budget")
    assert refused.status_code == 409
    assert (party.sealed.read_bytes(), PartyHome(home).settings) == before


def test_start_screen_names_statistics_trusted_by_an_earlier_release(page, home):
    assert "other packages" not in text(page.get("/"))
    sign_former_trust(home, "sentence_histogram")
    assert "(sentence_histogram)" in text(page.get("/"))
    page.post("/policy", {"units": "user", "run_epsilon": "1"}, **FEWEST)
    assert "sentence_histogram" not in text(page.get("/"))


def test_command_prints_the_log_of_what_people_did_on_the_page(page, home):
    assert "log in" in command("page", "--audit", "--home", home)
    path = home / "page" / "audit.jsonl"
    path.write_bytes(path.read_bytes().replace(b"hospital", b"nobody!!", 1))
    command("page", "--audit", "--home", home, code=3)


def test_officer_s_document_lists_the_first_steps_that_the_page_shows(page, home):
    policy.write(PartyHome(home), policy.HospitalPolicy())
    shown = page.get("/").text.partition("First steps")[2].partition("</ol>")[0]
    assert steps_of("officer") == [
        unescape(words).strip() for words in re.findall(r"<li[^>]*>(?:<a [^>]*>)?([^<]+)", shown)
    ]


def test_log_screen_saves_all_evidence_in_one_file(page, home, tmp_path):
    manifest = proposed(home)
    page.post(f"/requests/{manifest.hash.hex()}/reject", OFFICER, of=f"/requests/{manifest.hash.hex()}", sure="yes")
    assert '/log/evidence.zip"' in page.get("/log").text
    saved = tmp_path / "alpha.zip"
    saved.write_bytes(page.get("/log/evidence.zip").content)
    assert "restored 0 requests" in command("restore-evidence", saved, "--home", home)
    (home / "requests" / f"{manifest.hash.hex()}.json").unlink()
    command("restore-evidence", saved, "--home", home)
    assert "rejected" in text(page.get(f"/requests/{manifest.hash.hex()}"))
    assert "evidence restored" in page.get("/log").text


def test_restored_approval_needs_a_new_approval_on_the_page(page, home, tmp_path):
    manifest = proposed(home)
    address = f"/requests/{manifest.hash.hex()}"
    page.post(f"{address}/approve", OFFICER, words=spoken(manifest))
    saved = tmp_path / "alpha.zip"
    command("evidence", saved, "--home", home)
    (home / "requests" / f"{manifest.hash.hex()}.json").unlink()
    command("restore-evidence", saved, "--home", home)
    assert "consents to nothing" in text(page.get(address))
    assert address in page.get("/").text  # it waits for a decision
    page.post(f"{address}/approve", OFFICER, words=spoken(manifest))
    assert "consents to nothing" not in text(page.get(address))
    Proposals(PartyHome(home)).check(manifest)


def test_page_joins_only_with_the_right_fingerprint_and_gives_one_request(tmp_path, authority):
    home = tmp_path / "beta"
    command("init", "beta", "--home", home)
    site = build(PartyPaths(home, checkpoints_folder(home)), hosts=(HOST,), port=8700)
    site.accounts.set_role("hospital", "administrator")
    page = Browser(site).enter(site.accounts.link("hospital"))
    package = {"package": ("beta.package", authority.package_bytes("beta", "localhost:7443"))}

    def send(path, files, **fields):
        return page.client.post(path, data={**page.hidden("/coordinator"), **fields}, files=files)

    wrong = send("/coordinator/package", package, fingerprint="1a2b-3c4d")
    assert wrong.status_code == 409
    assert authority.package("beta").fingerprint not in wrong.text  # it would be copied, not compared
    done = send("/coordinator/package", package, fingerprint=authority.package("beta").fingerprint)
    link = re.search(r'href="([^"]+/download/[^"]+)"', page.get(done.headers["location"]).text)[1]
    request = page.get(link)
    assert "beta.request.json" in request.headers["content-disposition"]
    assert page.get(link).status_code == 404
    grant = authority.grant(EnrolmentRequest.parse(request.content))
    send("/coordinator/grant", {"grant": ("beta.grant", grant)})
    assert "valid from" in page.get("/coordinator").text
    assert page.post("/coordinator/leave", of="/coordinator", typed="other").status_code == 409
    page.post("/coordinator/leave", of="/coordinator", typed="beta")
    assert "has joined no coordinator" in page.get("/coordinator").text
    site.close()


def test_log_in_by_a_provider_gives_the_role_of_the_person_s_group(home):
    site = build(PartyPaths(home, checkpoints_folder(home)), hosts=(HOST,), port=8700)
    provider = FakeProvider(home.parent, site=site, roles={"privacy": "operator", "it": "administrator"})
    assert provider.enter(groups=["privacy"]) == 303
    assert site.accounts.person("ada@hospital.example").role == "operator"
    for refused in ({"groups": ["ward"]}, {"azp": "another"}, {"sub": None}, {"iss": "https://evil.example"}):
        assert provider.enter(**({"groups": ["privacy"]} | refused)) == 403
    site.close()


def test_other_machines_reach_the_page_over_tls_with_a_provider_only(home, tmp_path):
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    tls = ("--tls-certificate", certificate, "--tls-key", key)
    for options, code in (((), "page-without-tls"), (tls, "no-issuer")):
        with raises(ConfigurationError, code):
            raise typed(app, "page", "--bind", "0.0.0.0", *options, "--home", home, standalone_mode=False).exception


def test_hostile_names_are_shown_as_text(page, home):
    hostile = "<img src=x onerror=alert(1)>\u202e\x1b[2J"
    (home.parent / "daemon.log").write_text(f"refused: {hostile}\n")
    status = {"state": "waiting", "problem": hostile, "refused": [{"at_s": 1.8e9, "problem": hostile}]}
    (home / "status.json").write_text(json.dumps(status))
    (home / "status.json").chmod(0o600)
    for path in ("/", "/log"):
        shown = page.get(path).text
        assert "<img" not in shown
        assert "\x1b" not in shown
        assert "\u202e" not in shown
        assert r"\x1b[2J" in shown


def test_page_s_viewer_role_can_read_but_not_decide(page, home):
    address = f"/requests/{proposed(home, run='spring').hash.hex()}"
    site = page.site
    site.accounts.set_role("reader", "viewer")
    reader = Browser(site).enter(site.accounts.link("reader"))
    assert "Approve…" not in reader.get(address).text
    fields = page.hidden(address)
    own = reader.hidden("/")
    for path in (f"{address}/approve", f"{address}/reject", "/pause", "/budget", "/policy", "/coordinator/leave"):
        sent = {**fields, **own}
        assert reader.client.post(path, data=sent).status_code == 403, path


def test_policy_screen_says_who_can_approve_alone_under_each_choice(page):
    shown = page.get("/policy").text
    for is_standing, needs_two in DECIDERS.values():
        assert decider_words(is_standing=is_standing, two_people=needs_two)[1:] in shown
    assert "One person. IT can approve without the privacy officer, by a command" in shown
    assert "Two people: a privacy officer and one for IT. One of them alone approves nothing." in shown


@pytest.mark.parametrize(("others", "verb"), [("0", "may be"), ("3", "are")])
def test_policy_screen_states_the_number_of_others_in_a_sentence(page, others, verb):
    page.post("/policy", {**FEWEST, "minimum_others": others}, run_epsilon="1", require_post_quantum="always")
    assert f"As it stands, your numbers {verb} opened " in text(page.get("/policy"))


@pytest.mark.slow
@pytest.mark.parametrize("number", slow_after(["\u00b2", "-1", "9" * 5000, "9" * 30], 2))
def test_page_answers_malformed_numbers_with_an_explanation(page, number):
    assert page.get(f"/outbox/{number}").status_code == 404
    for path in ("/requests", "/outbox"):
        assert "internal error" not in page.get(f"{path}?page={number}").text
    for field, words in (
        ("minimum_others", "is not a whole number"),
        ("declared_units", "is not a whole number"),
        ("minimum_colluders", "smallest number of colluders is"),
    ):
        refused = page.post("/policy", {**FEWEST, field: number}, run_epsilon="1")
        assert refused.status_code == 409, field
        assert words in refused.text
