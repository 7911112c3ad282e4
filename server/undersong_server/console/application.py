"""The console's application and its screens, but for those of runs."""

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any
from urllib.parse import quote, urlencode

from fastapi.responses import Response

from undersong_common.errors import ConfigurationError
from undersong_common.pages.accounts import ROLES, Role
from undersong_common.pages.site import NextStep, PageSettings, Part, Site, Visit, download, json_answer
from undersong_common.pages.store import Offer
from undersong_common.pages.stream import PulseStream
from undersong_common.printable import is_number, printable
from undersong_common.program.drill import COORDINATOR_WORDS
from undersong_common.version import SOFTWARE
from undersong_server import defaults
from undersong_server.console.run_pages import ConsoleContext, RunScreens
from undersong_server.operations import beginning, coordinator, enrolment, open_points, overview, runs, tasks, uploads

MENU: tuple[tuple[str, str, Role], ...] = (
    ("/", "Home", "viewer"),
    ("/parties", "Hospitals", "viewer"),
    ("/runs", "Runs", "viewer"),
    ("/compare", "Compare", "viewer"),
    ("/generators", "Generators", "viewer"),
    ("/audit", "Audit", "viewer"),
    ("/people", "People", "administrator"),
)
# Screen and title of the action that a remedy for a terminal calls by its command.
ACTIONS: Mapping[str, tuple[str, str]] = {
    "undersong invite": ("/parties/invite", "Invite a hospital"),
    "undersong sign": ("/parties/sign", "Sign a request"),
    "undersong parties": ("/parties", "Hospitals"),
    "undersong leave-out": ("/parties", "Hospitals"),
    "undersong coordinator change": ("/#who-asks", "Say who asks"),
    "undersong run list": ("/runs", "Runs"),
    "undersong run plan": ("/runs/new", "New run"),
    "undersong run resume": ("", "Resume"),
    "undersong run start": ("", "Start"),
    "undersong run generators": ("/generators", "Generators"),
    "undersong console support": ("/audit/support.zip", "Support bundle"),
}
FAULT_REMEDY = (
    "nothing that you typed caused this; have IT restart the console, whose files may have changed while it ran; if it"
    " fails again, give whoever maintains the program these words and a support bundle: undersong console support"
)
MOST_NEEDS = 20  # notices that Home shows at most
RUNS_COUNTED = 50  # newest runs whose generators are shown


def build(context: ConsoleContext, *, hosts: tuple[str, ...], port: int, tls: bool = False) -> Site:
    """Builds the application. Raises ConfigurationError if ``context.home`` holds no coordinator."""
    coordinator_facts = coordinator.show(context.home)
    settings = PageSettings(
        title=coordinator_facts.name,
        hosts=hosts,
        port=port,
        tls=tls,
        folder=coordinator.console_folder(context.home),
        menu=MENU,
        packages=("undersong_server.console",),
        notice=COORDINATOR_WORDS if coordinator_facts.drill else "",
        actions=ACTIONS,
        next_step=lambda visit: _next_step(visit, context),
        fault_remedy=FAULT_REMEDY,
    )
    uploads.make_folder(context.home)  # A form says that files may be copied there.
    site = Site(settings)
    PulseStream(site, context.pulse)
    site.get("/", lambda visit: _home(visit, context))
    site.routes({}, {"/coordinator": lambda visit: _change_who_asks(visit, context)}, least="operator")
    PartyScreens(site, context)
    RunScreens(site, context)
    OversightScreens(site, context)
    overview.list_runs(context.home)  # The list is cached before the first browser has to wait for it.
    return site


def _home(visit: Visit, context: ConsoleContext) -> Response:
    read_runs = partial(context.list_runs, visit)
    read_parties = cache(lambda: enrolment.parties(context.home))
    read_needs = cache(lambda: overview.needs(context.home, read_runs(), read_parties(), visit.site.store.offers()))
    read_needy_names = cache(lambda: {need.name for need in read_needs()})
    read_shown_runs = cache(lambda: overview.listed_runs(read_runs()))
    # Runs that need the operator stand among the needs.
    read_other_runs = cache(lambda: [run for run in read_shown_runs() if run.run not in read_needy_names()])
    read_enrolled = cache(lambda: [party for party in read_parties() if party.party.state == "enrolled"])
    parts: dict[str, Part] = {
        "first_steps": lambda: {"steps": beginning.first_steps(context.home, read_runs(), read_parties())},
        "needs": lambda: {"needs": read_needs()[:MOST_NEEDS], "more": max(0, len(read_needs()) - MOST_NEEDS)},
        "under_way": lambda: {
            "under_way": [run for run in read_other_runs() if run.status.state in runs.UNDER_WAY][:20],
            "any_under_way": any(run.status.state in runs.UNDER_WAY for run in read_shown_runs()),
            "latest": read_other_runs()[:5],
            "compare_query": _compare_query(read_shown_runs()),
        },
        "figures": lambda: {
            "enrolled": len(read_enrolled()),
            "connected": sum(party.connected for party in read_enrolled()),
            "states": Counter(run.status.state for run in read_runs()),
            "spent": overview.spending(context.home, read_runs()),
        },
        "coordinator": lambda: {"facts": coordinator.show(context.home)},
    }
    return visit.page("Home", parts, **context.live("all"))


def _compare_query(listed: Sequence[runs.RunSummary]) -> str:
    """The query that compares the two runs which finished last; "" before there are two.

    Args:
        listed: newest first.
    """
    finished_names = [run.run for run in listed if run.status.state == "finished"][:2]
    return urlencode([("run", name) for name in finished_names]) if len(finished_names) == 2 else ""


def _next_step(visit: Visit, context: ConsoleContext) -> NextStep:
    has_made_file = "package" in visit.query or "grant" in visit.query
    step = beginning.step_of_form(visit.request.url.path, visit.query.get("name", "") if has_made_file else "")
    if step is None and visit.request.url.path == "/compare":
        with contextlib.suppress(ConfigurationError):  # The screen tells of an unknown run.
            count_points = partial(open_points.count_open_points, context.home)
            step = beginning.step_of_comparison(context.compare_runs(visit), count_points)
    if step is None:
        step = beginning.next_step(context.home, partial(context.list_runs, visit), visit.path.get("run", ""))
    other = None if step.other is None else NextStep(step.other.words, step.other.address)
    return NextStep(step.words, step.address, other)


def _change_who_asks(visit: Visit, context: ConsoleContext) -> str:
    contact_details = {key: visit.form.get(key, "").strip() for key in ("operator", "contact")}
    facts = coordinator.change(context.home, **contact_details)
    visit.note("change", f"{facts.operator}, {facts.contact}")
    return visit.go("/", "Every plan from now on states it.")


class PartyScreens:
    """Screens for the parties: list, invite, sign, revoke. Mounts its routes on ``site``."""

    def __init__(self, site: Site, context: ConsoleContext) -> None:
        self._context = context
        self._home = context.home
        site.routes({"/parties": self._list, "/parties/one/{name}": self._one})
        site.routes(
            {
                "/parties/invite": self._invite_form,
                "/parties/sign": self._sign_form,
                "/parties/one/{name}/letter": self._letter,
            },
            {
                "/parties/invite": self._invite,
                "/parties/sign": self._sign,
                "/parties/one/{name}/revoke": self._revoke,
                "/parties/one/{name}/leave-out": partial(self._leave_out, True),
                "/parties/one/{name}/take-in": partial(self._leave_out, False),
                "/parties/one/{name}/contact": self._note_contact,
                "/parties/one/{name}/full-name": self._note_full_name,
            },
            least="operator",
        )

    def _list(self, visit: Visit) -> Response:
        find, wanted_state = visit.query.get("find", "").strip(), visit.query.get("state", "")
        offers = visit.site.store.offers

        def read_parties() -> dict[str, Any]:
            all_parties = enrolment.parties(self._home)
            fitting_parties = overview.fitting(all_parties, find=find, state=wanted_state)
            count_by_embedder = overview.embedders(all_parties)
            common_embedder = max(count_by_embedder, key=lambda name: count_by_embedder[name], default="")
            choices = {
                "find": find,
                "state": wanted_state,
                "common": common_embedder,
                "differ": len(count_by_embedder) > 1,
            }
            shown = {"unfetched": partial(_unfetched, visit, offers()), "left": self._epsilon_left(visit)}
            return {**visit.listed(fitting_parties), **choices, **shown}

        return visit.page("Hospitals", {"parties": read_parties}, **self._context.live("all"))

    def _one(self, visit: Visit) -> Response:
        name = visit.path["name"]
        offers = visit.site.store.offers

        def read_party() -> dict[str, Any]:
            unfetched = partial(_unfetched, visit, offers())
            return {"facts": self._find(name), "unfetched": unfetched, "left": self._epsilon_left(visit)}

        return visit.page(name, {"party": read_party}, **self._context.live("all"))

    def _epsilon_left(self, visit: Visit) -> Callable[[enrolment.PartyFacts], overview.EpsilonLeft | None]:
        return lambda facts: overview.epsilon_left(self._home, facts, self._context.list_runs(visit))

    def _find(self, name: str) -> enrolment.PartyFacts:
        party_facts = next(
            (party_facts for party_facts in enrolment.parties(self._home) if party_facts.party.name == name), None
        )
        if party_facts is None:
            raise ConfigurationError(f"there is no hospital {printable(name, 100)!r}", "see the list of hospitals")
        return party_facts

    def _invite_form(self, visit: Visit) -> Response:
        download_key, name = visit.query.get("package", ""), visit.query.get("name", "")
        is_waiting = visit.site.downloads.waits(download_key, visit.person.name)
        downloaded_at = _fetched_at(visit, f"{name}.{enrolment.PACKAGE}")
        # The name is not filled in again after an invitation, because a second one would end the first.
        proposed_name = "" if download_key and (is_waiting or downloaded_at) else name
        return visit.show(
            "invite.html.j2",
            "Invite a hospital",
            facts=coordinator.show(self._home),
            package=download_key if is_waiting else "",
            made=name,
            is_again="second" in visit.query,
            prefilled=proposed_name,
            downloaded_at=downloaded_at,
            days=defaults.INVITATION_DAYS,
        )

    def _invite(self, visit: Visit) -> str:
        name = visit.form.get("name", "").strip()
        is_again = any(party.party.name == name for party in enrolment.parties(self._home))
        invitation = enrolment.invite(
            self._home,
            name,
            days=_parse_days(visit.form.get("days", "")),
            again="again" in visit.form,
            contact=visit.form.get("contact", "").strip(),
            full_name=visit.form.get("full_name", "").strip(),
        )
        visit.note("invite", name)
        download_key = visit.offer(f"{name}.{enrolment.PACKAGE}", invitation.package)
        second_query = "&second=yes" if is_again else ""
        return visit.go(f"/parties/invite?package={download_key}&name={quote(name)}{second_query}")

    def _sign_form(self, visit: Visit) -> Response:
        download_key, name = visit.query.get("grant", ""), visit.query.get("name", "")
        is_waiting = visit.site.downloads.waits(download_key, visit.person.name)
        return visit.show(
            "sign.html.j2",
            "Sign a hospital's request",
            grant=download_key if is_waiting else "",
            made=name,
            downloaded_at=_fetched_at(visit, f"{name}.{enrolment.GRANT}"),
        )

    def _sign(self, visit: Visit) -> str:
        fingerprint = visit.form.get("fingerprint", "").strip()
        try:
            enrolled = enrolment.sign(
                self._home,
                visit.files.get("request", b""),
                fingerprint=fingerprint or None,
                replaces=visit.form.get("replaces", "").strip() or None,
            )
        except enrolment.OtherFingerprint as error:
            visit.note("sign refused", error.words)
            raise
        visit.note("sign", f"{enrolled.party} {enrolled.kind}, request {enrolled.request_fingerprint}")
        download_key = visit.offer(f"{enrolled.party}.{enrolment.GRANT}", enrolled.grant)
        result_words = {
            "enrolled": "is enrolled",
            "renewed": "has a new certificate",
            "replaced": "has another key from now on",
        }
        message = f"The fingerprints match: {enrolled.party} {result_words[enrolled.kind]}."
        return visit.go(
            f"/parties/sign?grant={download_key}&name={quote(enrolled.party)}", message if fingerprint else "Renewed."
        )

    def _letter(self, visit: Visit) -> Response:
        """A letter to a hospital, to print: who asks, labels and budget of the newest run or draft, and the steps."""
        return visit.show(
            "letter.html.j2",
            f"Letter to {visit.path['name']}",
            party=self._find(visit.path["name"]).party,
            facts=coordinator.show(self._home),
            frame=beginning.newest_budget_figures(self._home),
            software=SOFTWARE,
        )

    def _note_contact(self, visit: Visit) -> str:
        name = visit.path["name"]
        enrolment.note_contact(self._home, name, visit.form.get("contact", ""))
        visit.note("contact", name)
        return visit.go(f"/parties/one/{quote(name)}", "The contact is saved.")

    def _note_full_name(self, visit: Visit) -> str:
        name = visit.path["name"]
        enrolment.note_full_name(self._home, name, visit.form.get("full_name", ""))
        visit.note("full-name", name)
        return visit.go(f"/parties/one/{quote(name)}", "The full name is saved. Plans made from now on state it.")

    def _leave_out(self, is_left_out: bool, visit: Visit) -> str:
        name = visit.path["name"]
        enrolment.leave_out(self._home, name, is_left_out=is_left_out)
        visit.note("leave out" if is_left_out else "take in", name)
        words = "New runs leave it out until you take it in again." if is_left_out else "New runs ask it again."
        return visit.go(f"/parties/one/{quote(name)}", words)

    def _revoke(self, visit: Visit) -> str:
        name = visit.path["name"]
        visit.check_typed(name)
        enrolment.revoke(self._home, name, visit.form.get("reason", "").strip())
        visit.note("revoke", name)
        return visit.go(f"/parties/one/{quote(name)}", f"{name} is revoked; its stream ends within seconds.")


def _fetched_at(visit: Visit, file_name: str) -> float | None:
    """Time of the file's last download; None if nobody has downloaded it."""
    offer = visit.site.store.offers().get(file_name)
    return None if offer is None else offer.fetched_at


@dataclass(frozen=True)
class FetchLink:
    """A link to a file that a hospital waits for, or to the form that makes it anew."""

    file: enrolment.UnfetchedFile
    address: str
    words: str


def _unfetched(visit: Visit, offers: Mapping[str, Offer], facts: enrolment.PartyFacts) -> FetchLink | None:
    """Returns a link to the file that a hospital waits for, or to the form that makes it; None if no file is due."""
    file = enrolment.unfetched_file(facts, offers)
    if file is None:
        return None
    party = quote(facts.party.name)
    download_key = visit.site.downloads.key_of(file.name, visit.person.name)
    if not download_key:
        return FetchLink(file, f"/parties/invite?name={party}", f"make a new {file.kind}: invite it again")
    screen = "invite?package" if file.kind == "package" else "sign?grant"
    return FetchLink(file, f"/parties/{screen}={download_key}&name={party}", "download it")


def _parse_days(text: str) -> float:
    try:
        days = float(text or defaults.INVITATION_DAYS)
    except ValueError:
        days = math.nan
    if not 0.1 <= days <= 365:
        raise ConfigurationError(
            f"days that the invitation is open: {text!r} is not between 0.1 and 365", "write for example 14"
        )
    return days


class OversightScreens:
    """Screens for generators, the audit log and accounts, and the API for scripts. Mounts its routes on ``site``."""

    def __init__(self, site: Site, context: ConsoleContext) -> None:
        self._context = context
        self._home = context.home
        site.routes(
            {
                "/generators": self._generators,
                "/audit": self._audit,
                "/audit/audit.jsonl": self._audit_file,
                "/api/parties": lambda _: json_answer([party.to_json() for party in enrolment.parties(self._home)]),
                "/api/runs": lambda _: json_answer([run.to_json() for run in overview.list_runs(context.home)]),
                "/api/runs/{run}": lambda visit: json_answer(runs.show(self._home, visit.path["run"]).to_json()),
            }
        )
        site.routes({"/audit/support.zip": self._bundle}, {"/generators/test": self._test}, least="operator")
        site.routes(
            {"/people": self._people},
            {
                "/people": self._set_person,
                "/people/link": self._link,
                "/people/remove": self._remove,
                "/people/session": self._end_session,
                "/people/token": self._token,
                "/people/token/end": self._end_token,
            },
            least="administrator",
        )

    # These methods serve the screens of generators.

    def _generators(self, visit: Visit) -> Response:
        newest_names = [run.run for run in self._context.list_runs(visit)[:RUNS_COUNTED]]

        def read_generators() -> dict[str, Any]:
            usages = overview.generator_usage(self._home, newest_names)
            has_written = any(usage.counts for usage in usages)
            return {
                "used": usages,
                "written": has_written,
                "runs": newest_names,
                "columns": overview.usage_columns(usages),
            }

        return visit.page("Generators", {"generators": read_generators})

    def _test(self, visit: Visit) -> str:
        run, name = visit.form.get("run", ""), visit.form.get("generator", "")
        context = self._context
        with context.work.only(f"the test of {name}"):
            tried = tasks.try_in_run(
                self._home, run, name, environment=context.environment, public_cache=context.public_cache
            )
        visit.note("generator test", f"{name} of {run}")
        if tried.fault:
            message = f"{name} gave no usable text ({tried.fault}; {tasks.cost_of([tried])}): {tried.answer}"
            return visit.go("/generators", message, "bad")
        return visit.go("/generators", f"{name} answered in {tasks.cost_of([tried])}: {tried.answer}")

    # These methods serve the screen of the audit.

    def _audit(self, visit: Visit) -> Response:
        find = visit.query.get("find", "").strip().casefold()

        def read_audit() -> dict[str, Any]:
            entries = visit.site.audit.entries()[::-1]
            fitting_entries = [
                entry for entry in entries if find in f"{entry.who} {entry.what} {entry.about}".casefold()
            ]
            return {**visit.listed(fitting_entries), "checked": len(entries), "find": visit.query.get("find", "")}

        return visit.page("Audit", {"audit": read_audit})

    def _audit_file(self, visit: Visit) -> Response:
        path = visit.site.audit.path
        return download(path.read_bytes() if path.exists() else b"", "audit.jsonl")

    def _bundle(self, visit: Visit) -> Response:
        visit.note("support bundle")
        return download(overview.support_bundle(self._home), "undersong-support.zip", "application/zip")

    # These methods serve the screens of people.

    def _people(self, visit: Visit) -> Response:
        download_key = visit.query.get("secret", "")
        token_secret = ""
        if visit.site.downloads.waits(download_key, visit.person.name):
            token_secret = visit.site.downloads.take(download_key, visit.person.name).data.decode()
        session_number = visit.session.number if visit.session is not None else 0
        accounts = visit.site.accounts

        def read_people() -> dict[str, Any]:
            access_lists = {"people": accounts.people(), "sessions": accounts.sessions(), "tokens": accounts.tokens()}
            return {**access_lists, "roles": ROLES, "secret": token_secret, "own": session_number}

        return visit.page("People", {"people": read_people})

    def _set_person(self, visit: Visit) -> str:
        name, role = visit.form.get("name", "").strip(), visit.form.get("role", "")
        account = visit.site.accounts.set_role(name, role, by=visit.identities)
        visit.note("set role", f"{account.name}: {account.role}")
        return visit.go("/people", f"{account.name} is {account.role}. Make a link with which they log in.")

    def _link(self, visit: Visit) -> str:
        name = visit.form.get("name", "")
        secret = visit.site.accounts.link(name, by=visit.identities)
        visit.note("link", name)
        address = f"{visit.request.url.scheme}://{visit.request.headers['host']}/enter#{secret}"
        download_key = visit.offer("link", f"Lets {name} in once, within 15 minutes: {address}".encode())
        return visit.go(f"/people?secret={download_key}")

    def _remove(self, visit: Visit) -> str:
        name = visit.form.get("name", "")
        visit.check_typed(name)
        visit.site.accounts.remove(name)
        visit.note("remove person", name)
        return visit.go("/people", f"{name} is removed; their sessions and tokens have ended.")

    def _end_session(self, visit: Visit) -> str:
        number = visit.form.get("number", "")
        if not is_number(number):
            raise ConfigurationError("no session was named", "choose a session of the list")
        visit.site.accounts.end_number(int(number))
        visit.note("end session", number)
        return visit.go("/people", "The session has ended.")

    def _token(self, visit: Visit) -> str:
        name, label = visit.form.get("name", ""), visit.form.get("label", "").strip() or "script"
        token = visit.site.accounts.make_token(name, label, days=defaults.TOKEN_DAYS)
        visit.note("make token", f"{name}: {label}")
        download_key = visit.offer(
            "token", f"The token {label} of {name}, valid for {defaults.TOKEN_DAYS:.0f} days: {token}".encode()
        )
        return visit.go(f"/people?secret={download_key}")

    def _end_token(self, visit: Visit) -> str:
        visit.site.accounts.end_token(visit.form.get("token", ""))
        visit.note("end token", visit.form.get("token", ""))
        return visit.go("/people", "The token has ended.")
