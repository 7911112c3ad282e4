"""Who may enter a page, and what a request needs before anything is done for it."""

import asyncio
import re
import threading
from collections import Counter

import httpx
import pytest
from argon2 import PasswordHasher
from fastapi.testclient import TestClient

from tests.doubles.coded import raises
from tests.doubles.loops import in_a_thread, wait_for
from tests.doubles.plain_browser import HOST, Browser
from undersong_common.errors import ConfigurationError, PrivacyRefusal
from undersong_common.pages import accounts as module
from undersong_common.pages.accounts import FAILURES, Accounts, TooManyAttempts
from undersong_common.pages.site import PageSettings, Site
from undersong_common.pages.store import PageStore
from undersong_common.pages.stream import Pulse, PulseStream

pytestmark = pytest.mark.heavy  # argon2id takes its time

PASSWORD = "correct horse battery"


class Clock:
    now = 1_000_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def accounts(tmp_path, clock):
    store = PageStore(tmp_path)
    made = Accounts(store, clock=clock, hasher=PasswordHasher(time_cost=1, memory_cost=64))
    made.set_role("ada", "administrator")
    made.set_role("vera", "viewer")
    yield made
    store.close()


AHEAD_S = 400 * 86_400.0


def test_sessions_stored_under_a_fast_clock_end_once_it_is_right(accounts, clock):
    accounts.set_password("ada", PASSWORD)
    clock.now += AHEAD_S
    link, token, session = (
        accounts.link("vera"),
        accounts.make_token("ada", "x", days=1.0),
        accounts.begin("ada", address="x"),
    )
    for _ in range(FAILURES):
        with raises(PrivacyRefusal, "wrong-password"):
            accounts.enter_by_password("ada", "another one", address="x")
    assert accounts.by_token(token)
    clock.now -= AHEAD_S
    assert accounts.session(session) is None
    assert accounts.by_token(token) is None
    with raises(PrivacyRefusal, "link-used"):
        accounts.enter_by_link(link, address="x")
    assert accounts.enter_by_password("ada", PASSWORD, address="x")


def test_new_page_admits_nobody_and_redirects_screens_to_the_login(browser):
    for path in ("/", "/people", "/account", "/nowhere"):
        answer = browser.get(path)
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert browser.get("/?part=x").status_code == 401
    assert browser.post("/login", of="/login", name="admin", password="admin").status_code == 403


def test_health_check_needs_no_log_in_and_says_nothing_else(browser):
    answer = browser.get("/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_a_link_lets_one_browser_in_once_and_its_secret_is_in_no_file(site, tmp_path):
    site.accounts.set_role("ada", "administrator")
    secret = site.accounts.link("ada")
    first, second = Browser(site), Browser(site)
    done = first.post("/enter", code=secret)
    base = re.fullmatch(r"(/s/[\w-]{43})/account", done.headers["location"])[1]
    assert done.status_code == 303
    cookie = done.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert f"; Path={base}/;" in cookie
    assert first.get("/").status_code == 303
    assert first.entered(done.headers["location"]).get("/").status_code == 200
    again = second.post("/enter", code=secret)
    assert again.status_code == 403
    assert "used already" in again.text
    written = b"".join(path.read_bytes() for path in (tmp_path / "page").iterdir())
    assert secret.encode() not in written
    for half in (first.client.cookies["undersong_8700"], base.removeprefix("/s/")):
        assert half.encode() not in written


def test_log_in_link_expires(accounts, clock):
    secret = accounts.link("ada")
    clock.now += module.LINK_S + 1
    with raises(PrivacyRefusal, "link-used"):
        accounts.enter_by_link(secret, address="x")


def test_a_session_ends_without_use_and_after_its_longest_time(accounts, clock):
    secret = accounts.begin("ada", address="x")
    clock.now += module.IDLE_S - 1
    assert accounts.session(secret) is not None
    clock.now += module.IDLE_S - 1
    assert accounts.session(secret, active=False) is not None
    clock.now += 2
    assert accounts.session(secret) is None  # the stream did not keep it awake
    secret = accounts.begin("ada", address="x")
    for _ in range(int(module.SESSION_S // 1000) + 1):
        clock.now += 1000
        accounts.session(secret)
    assert accounts.session(secret) is None


@pytest.mark.parametrize(("path", "is_kept"), [("/account", True), ("/?part=x", False)])
def test_automatic_renewal_of_a_screen_does_not_prolong_the_session(site, clock, path, is_kept):
    site.accounts = Accounts(site.store, clock=clock)
    site.accounts.set_role("ada", "administrator")
    browser = Browser(site).enter(site.accounts.link("ada"))
    for _ in range(2):
        clock.now += module.IDLE_S - 1
        answer = browser.get(path)
    assert (answer.status_code == 200) is is_kept


def test_passwords_are_argon2id_and_wrong_ones_have_to_wait(accounts, clock, tmp_path):
    with raises(ConfigurationError, "password-length"):
        accounts.set_password("ada", "x" * 11)
    accounts.set_password("ada", PASSWORD)
    assert b"$argon2id$" in (tmp_path / "page.sqlite").read_bytes() + (tmp_path / "page.sqlite-wal").read_bytes()
    assert accounts.session(accounts.enter_by_password("ada", PASSWORD, address="a")).account.name == "ada"
    for name in ("ada", "nobody"):
        with raises(PrivacyRefusal, "wrong-password"):
            accounts.enter_by_password(name, "wrong", address="b")


def enter_wrongly(accounts, name, address, times):
    for _ in range(times):
        with raises(PrivacyRefusal, "wrong-password"):
            accounts.enter_by_password(name, "wrong", address=address)


def test_wrong_passwords_delay_only_that_account_at_that_source(accounts, clock):
    accounts.set_password("ada", PASSWORD)
    accounts.set_password("vera", PASSWORD)
    enter_wrongly(accounts, "ada", "a", module.FAILURES)
    with pytest.raises(TooManyAttempts):
        accounts.enter_by_password("ada", PASSWORD, address="a")
    for _ in range(2 * module.FAILURES):  # neither others there, nor she elsewhere, nor any by succeeding
        accounts.enter_by_password("vera", PASSWORD, address="a")
        accounts.enter_by_password("ada", PASSWORD, address="b")
    clock.now += module.FAILURES_S + 1
    accounts.enter_by_password("ada", PASSWORD, address="a")


def test_password_guesses_of_one_address_are_stopped_and_lock_out_no_other(accounts):
    accounts.set_password("ada", PASSWORD)
    for number in range(module.SOURCE_FAILURES):
        enter_wrongly(accounts, f"name {number}", "a", 1)
    with pytest.raises(TooManyAttempts):
        accounts.enter_by_password("ada", PASSWORD, address="a")
    for number in range(120):  # of one name from many sources: another one's password still fits
        enter_wrongly(accounts, "ada", f"b{number}", 1)
    accounts.enter_by_password("ada", PASSWORD, address="c")


@pytest.mark.parametrize("sources", ["127.0.{}.9", "::ffff:127.0.0.{}", "2001:db8::{}:1"])
def test_addresses_one_person_can_choose_among_count_as_one_source(accounts, sources):
    for number in range(module.SOURCE_FAILURES):
        enter_wrongly(accounts, f"name {number}", sources.format(number), 1)
    accounts.set_password("ada", PASSWORD)
    with pytest.raises(TooManyAttempts):
        accounts.enter_by_password("ada", PASSWORD, address=sources.format(99))
    accounts.enter_by_password("ada", PASSWORD, address="2001:db8:0:1::1")


def test_simultaneous_log_in_tries_are_limited_per_address_and_in_all(accounts, monkeypatch):
    accounts.set_password("ada", PASSWORD)
    go_on, verify = threading.Event(), PasswordHasher.verify
    monkeypatch.setattr(PasswordHasher, "verify", lambda *given: go_on.wait(20) and verify(*given))
    entered = []

    def enter(source):
        entered.append(accounts.enter_by_password("ada", PASSWORD, address=source))

    def under_way(threads):
        wait_for(lambda: accounts._tries.total() >= len(threads), 20.0)

    threads = []
    for source in "abcd":
        threads += [threading.Thread(target=enter, args=(source,)) for _ in range(module.SOURCE_TRIES_AT_ONCE)]
        for thread in threads[-module.SOURCE_TRIES_AT_ONCE :]:
            thread.start()
        under_way(threads)
        with pytest.raises(TooManyAttempts):
            enter(source)
    with pytest.raises(TooManyAttempts):
        enter("e")
    go_on.set()
    for thread in threads:
        thread.join(20)
    enter("e")
    assert len(entered) == module.TRIES_AT_ONCE + 1


def test_simultaneous_log_ins_check_few_passwords_and_log_no_refusals(site, monkeypatch):
    at_once, most, checked = 0, 0, 0
    lock = threading.Lock()
    verify = PasswordHasher.verify

    def counted(*given):
        nonlocal at_once, most, checked
        with lock:
            at_once, checked = at_once + 1, checked + 1
            most = max(most, at_once)
        try:
            return verify(*given)
        finally:
            with lock:
                at_once -= 1

    monkeypatch.setattr(PasswordHasher, "verify", counted)
    site.accounts.set_role("ada", "administrator")
    site.accounts.set_password("ada", PASSWORD)

    async def post_all(times):
        transport = httpx.ASGITransport(app=site.application)
        cookies = {"undersong_8700_form": "x"}
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}", cookies=cookies) as client:
            form = {"csrf": "x", "name": "ada", "password": "wrong horse battery"}
            return await asyncio.gather(*(client.post("/login", data=form) for _ in range(times)))

    answers = Counter(answer.status_code for answer in in_a_thread(post_all(60)))
    assert answers == {403: module.FAILURES, 429: 60 - module.FAILURES}
    assert checked == module.FAILURES
    assert most <= module.HASHES_AT_ONCE  # argon2id takes 64 MiB for each
    log = site.audit.path.read_bytes()
    assert len(log.splitlines()) == module.FAILURES
    assert {answer.status_code for answer in in_a_thread(post_all(20))} == {429}
    assert site.audit.path.read_bytes() == log


def test_wrong_log_in_links_do_not_block_a_right_one(accounts):
    secret = accounts.link("ada")
    for _ in range(5):
        with pytest.raises(PrivacyRefusal):
            accounts.enter_by_link("wrong", address="127.0.0.1")
    with pytest.raises(TooManyAttempts):
        accounts.enter_by_link("wrong", address="127.0.0.1")
    assert accounts.enter_by_link(secret, address="127.0.0.1")


def test_guessing_links_from_one_address_is_answered_with_429(site, browser):
    for _ in range(module.FAILURES):
        assert browser.post("/enter", code="guess").status_code == 403
    late = browser.post("/enter", code="guess")
    assert late.status_code == 429
    assert 0 < int(late.headers["retry-after"]) <= module.FAILURES_S + 1


def test_a_new_password_ends_the_other_sessions(inside, site):
    other = Browser(site).enter(site.accounts.link("ada"))
    assert inside.post("/account", password=PASSWORD, again="another one!").status_code == 409
    assert inside.post("/account", password=PASSWORD, again=PASSWORD).status_code == 303
    assert other.get("/").status_code == 303
    assert "other sessions have ended" in inside.get("/").text
    assert "other sessions" not in inside.get("/").text  # said once


def test_each_role_allows_its_own_screens_and_actions(site):
    for role, allowed in (("viewer", [200, 403]), ("operator", [200, 403]), ("administrator", [200, 200])):
        site.accounts.set_role("zoe", "administrator")
        site.accounts.set_role("eve", role)
        browser = Browser(site).enter(site.accounts.link("eve"))
        assert [browser.get(path).status_code for path in ("/", "/people")] == allowed
        done = browser.post("/act", of="/", what=role)
        assert done.status_code == (403 if role == "viewer" else 303)
        assert ("People</a>" in browser.get("/").text) == (role == "administrator")
    assert site.done == ["operator", "administrator"]


def test_last_administrator_cannot_be_removed(accounts):
    with raises(ConfigurationError, "only-administrator"):
        accounts.remove("ada")
    with raises(ConfigurationError, "only-administrator"):
        accounts.set_role("ada", "viewer")
    accounts.set_role("vera", "administrator")
    accounts.remove("ada")
    assert [each.name for each in accounts.people()] == ["vera"]


def test_nobody_inherits_the_duty_of_a_removed_namesake(accounts):
    accounts.duties.give("vera", "officer", source="administrator")
    assert accounts.duties.of("vera") is not None
    accounts.remove("vera")
    accounts.set_role("vera", "viewer")
    assert accounts.duties.of("vera") is None


def test_nobody_inherits_a_token_session_or_link_of_a_removed_namesake(accounts):
    accounts.set_role("zoe", "administrator")
    token = accounts.make_token("zoe", "nightly", days=1)
    session, link = accounts.begin("zoe", address="x"), accounts.link("zoe")
    accounts.remove("zoe")
    accounts.set_role("zoe", "administrator")
    assert accounts.by_token(token) is None
    assert accounts.tokens() == []
    assert accounts.session(session) is None
    with raises(PrivacyRefusal, "link-used"):
        accounts.enter_by_link(link, address="x")


def test_a_change_needs_the_sessions_token_and_this_pages_origin(inside, site):
    fields = inside.hidden("/")
    for wrong in ({**fields, "csrf": "x"}, {"action": fields["action"]}):
        assert inside.client.post("/act", data=wrong).status_code == 403
    other = Browser(site).enter(site.accounts.link("ada"))
    assert other.client.post("/act", data=fields).status_code == 403  # of another session
    assert inside.client.post("/act", data=fields, headers={"origin": "http://evil.example"}).status_code == 403
    # Another port of this machine is another page, and sends the same cookies.
    assert inside.client.post("/act", data=fields, headers={"origin": "http://127.0.0.1:9999"}).status_code == 403
    assert inside.client.post("/act", data=fields, headers={"origin": f"http://{HOST}"}).status_code == 303
    assert inside.get("/act").status_code in (404, 405)
    assert len(site.done) == 1
    outside = Browser(site)
    assert outside.client.post("/login", data={"name": "ada", "password": "x"}).status_code == 403


def test_form_sent_twice_performs_its_action_once(inside, site):
    fields = inside.hidden("/")
    answers = [inside.client.post("/act", data={**fields, "what": "once"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [303, 303]
    assert site.done == ["once"]
    assert inside.client.post("/act", data={"csrf": fields["csrf"]}).status_code == 409
    failing = inside.hidden("/")
    assert inside.client.post("/act", data={**failing, "fail": "1"}).status_code == 409
    assert inside.client.post("/act", data=failing).status_code == 303  # what failed may be tried again


def test_request_under_another_host_name_is_refused(site, inside):
    for host in ("evil.example", "evil.example:8700", "127.0.0.1:8701", ""):
        assert inside.get("/", headers={"host": host}).status_code == 421


def test_request_bodies_within_a_session_are_bounded(inside):
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert inside.client.post("/act", content=b"x" * (9 << 20)).status_code == 413
    in_chunks = (b"x" * 2**20 for _ in range(9))
    assert inside.client.post("/act", content=in_chunks, headers=form).status_code == 413


def test_limit_of_request_bodies_is_lower_without_a_session(browser, site):
    form = {"content-type": "application/x-www-form-urlencoded"}
    for address in ("/login", "/enter", "/act"):
        assert browser.client.post(address, content=b"x" * 2**17, headers=form).status_code == 413
    in_chunks = (b"x" * 2**14 for _ in range(9))
    assert browser.client.post("/login", content=in_chunks, headers=form).status_code == 413
    invented = f"/s/{'x' * 43}"
    large = browser.client.post(f"{invented}/csp-report", content=b"x" * 2**17)
    assert large.status_code == 413  # it is read before anybody is known
    for address in ("/act", "/login", "/enter"):
        chunks = iter([b"x" * 2**20] * 5)
        answer = browser.client.post(f"{invented}{address}", content=(each for each in chunks), headers=form)
        assert answer.status_code == 303
        assert len(list(chunks)) >= 4  # the client sends what is asked for


def test_last_value_of_a_repeated_form_field_counts(inside, site):
    """A check box follows a hidden field, which says what an empty box means."""
    inside.post("/act", of="/", what=["false", "true"])
    assert site.done == ["true"]


def test_half_a_surrogate_pair_in_a_form_is_answered_with_403(browser):
    part = '--b\r\ncontent-disposition: form-data; name="%s"\r\n\r\n\\ud800\r\n'
    body = '--b\r\ncontent-disposition: form-data; name="_charset_"\r\n\r\nunicode_escape\r\n'
    body += part % "csrf" + part % "name" + "--b--\r\n"
    kind = "multipart/form-data; boundary=b; charset=unicode_escape"
    assert browser.client.post("/login", content=body.encode(), headers={"content-type": kind}).status_code == 403


def test_cookie_or_address_half_of_a_session_secret_gives_no_access(inside, site):
    """Cookies know no ports: whoever serves another port of this host may hold one."""
    PulseStream(site, lambda _topic: Pulse("1"))
    fields = inside.hidden("/")
    cookie, base = inside.client.cookies["undersong_8700"], inside.client.base
    other = Browser(site).enter(site.accounts.link("ada"))
    for halves in ((cookie, ""), (cookie, other.client.base), (cookie, f"/s/{'x' * 43}"), ("", base), ("x" * 43, base)):
        thief = TestClient(site.application, base_url=f"http://{HOST}", follow_redirects=False)
        headers = {"cookie": f"undersong_8700={halves[0]}; undersong_8700_form={halves[0]}"}
        for path in ("/", "/people", "/account", "/download/x", "/nowhere", f"/{cookie}/"):
            answer = thief.get(f"{halves[1]}{path}", headers=headers)
            assert (answer.status_code, answer.headers["location"]) == (303, "/login"), path
        for path in ("/stream?topic=all", "/alive", "/?part=x"):
            assert thief.get(f"{halves[1]}{path}", headers=headers).status_code == 401, path
        for path in ("/act", "/account", "/logout"):
            done = thief.post(f"{halves[1]}{path}", data={**fields, "what": "theft"}, headers=headers)
            assert (done.status_code, done.headers["location"]) == (303, "/login"), path
    assert site.done == []
    assert inside.client.post("/act", data=fields).status_code == 303
    whole = f"undersong_8700={cookie}"
    for held in (whole, f"undersong_8700=evil; {whole}", f"{whole}; undersong_8700=evil"):
        # Another port's page may have set a cookie of the same name: it does not hide the session's own.
        client = TestClient(site.application, base_url=f"http://{HOST}", headers={"cookie": held})
        assert client.get(f"{base}/alive").status_code == 204  # it was not refused for another reason


def test_stored_report_of_a_csp_violation_has_no_session_secret(inside, site):
    report = f'{{"csp-report": {{"document-uri": "http://{HOST}{inside.client.base}/runs", "referrer": ""}}}}'
    inside.client.post("/csp-report", content=report.encode())
    assert "/s/.../runs" in site.violations[0]
    assert inside.client.base not in site.violations[0]


def test_every_answer_has_a_content_security_policy_and_no_inline_code(inside, browser):
    for answer in (browser.get("/login"), browser.get("/nowhere"), inside.get("/"), inside.get("/nowhere")):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["referrer-policy"] == "same-origin"
        assert " style=" not in answer.text
        assert " onclick" not in answer.text
        assert "<style" not in answer.text
    assert inside.get("/assets/x/page.css").headers["content-type"].startswith("text/css")
    assert inside.get("/assets/x/../site.py").status_code in (303, 404)


def test_shown_strings_are_escaped_and_control_characters_visible(inside):
    text = inside.get("/").text
    assert "<b>" not in text
    assert r"&lt;b&gt;\x1b[2J&lt;/b&gt;" in text
    failed = inside.post("/act", of="/", fail="1")
    assert "It &lt;i&gt;failed&lt;/i&gt;" in failed.text
    assert "try again" in failed.text


@pytest.mark.slow
def test_reports_of_csp_violations_are_stored_up_to_a_limit(site, browser):
    for _ in range(120):
        assert browser.client.post("/csp-report", content=b'{"csp-report": {"blocked-uri": "\x1b"}}').status_code == 204
    assert len(site.violations) == 100
    assert "\x1b" not in site.violations[0]


def test_a_script_reads_with_a_token_and_changes_nothing(site):
    site.accounts.set_role("zoe", "administrator")
    token = site.accounts.make_token("zoe", "nightly", days=1)
    script = Browser(site)
    headers = {"authorization": f"Bearer {token}"}
    assert script.get("/people", headers=headers).status_code == 200
    assert script.client.post("/act", headers=headers, data={}).status_code in (303, 401)
    assert site.done == []
    site.accounts.end_token(site.accounts.tokens()[0].identity)
    assert script.get("/people", headers=headers).status_code == 401


def test_logging_out_ends_the_session(inside, site):
    assert inside.led(inside.post("/logout", of="/")) == "/login"
    assert inside.get(f"{inside.client.base}/login").headers["location"] == "/login"
    assert inside.get("/").status_code == 303
    assert [entry.what for entry in site.audit.entries()] == ["log in by link", "log out"]


def test_over_tls_cookies_are_secure_and_of_this_host_alone(tmp_path):
    settings = PageSettings("Test", ("console.example",), 443, True, tmp_path / "tls", (("/", "Now", "viewer"),), ())
    site = Site(settings)
    site.accounts.set_role("ada", "viewer")
    browser = Browser(site, host="console.example", scheme="https")
    done = browser.post("/enter", code=site.accounts.link("ada"))
    cookie = done.headers["set-cookie"]
    assert "; Path=/;" in cookie.partition("__Host-undersong_443_form")[0]  # as the prefix wants it
    assert cookie.startswith("__Host-undersong_443=")
    assert "Secure" in cookie
    assert "Domain" not in cookie
    assert done.headers["strict-transport-security"].startswith("max-age=")
    site.close()


def test_form_key_counts_as_used_only_in_its_session_and_route(site, inside):
    site.post("/other", lambda visit: visit.go("/elsewhere", site.done.append("other") or ""), least="operator")
    key = inside.hidden("/")["action"]
    sent = {"csrf": inside.hidden("/")["csrf"], "action": key}
    site.accounts.set_role("bo", "administrator")
    other = Browser(site).enter(site.accounts.link("bo"))
    assert other.post("/act", of="/", action=key, what="of bo").status_code == 303
    for _ in range(2):
        assert inside.led(inside.client.post("/act", data={**sent, "what": "of ada"})) == "/"
        assert inside.led(inside.client.post("/other", data=sent)) == "/elsewhere"
    assert site.done == ["of bo", "of ada", "other"]
