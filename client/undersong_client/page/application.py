"""The hospital's page as a web application: its screens show and change one party's folder."""

import hashlib
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

from fastapi.responses import Response

from undersong_client.consent import policy, two_people
from undersong_client.consent.people import ROLES, ROLES_OF_TWO, Person
from undersong_client.consent.rules import PolicyOptions, PolicyRules, decider_choices, form_fields
from undersong_client.consent.run_terms import REJECT_IS_FINAL, WITHDRAWAL
from undersong_client.home import Declared, PartyHome, chosen_user_is
from undersong_client.operations import daemon, data, dossier, evidence, joining, outbox, rules, runs
from undersong_client.records.declared import caution_remedy
from undersong_client.storage.addition import AdditionOptions
from undersong_client.storage.own_figures import own_figures
from undersong_common.errors import ConfigurationError, named_options
from undersong_common.files import file_state
from undersong_common.pages.accounts import Role
from undersong_common.pages.site import PAGE_ROWS, NextStep, PageSettings, Part, Site, Visit, download
from undersong_common.pages.stream import Pulse, PulseStream
from undersong_common.printable import is_number, json_text, printable
from undersong_common.privacy import accounting, impact
from undersong_common.program.drill import PARTY_WORDS
from undersong_common.program.printed_page import PrintedPage
from undersong_common.text.patient_ids import KINDS
from undersong_protocol import statistics
from undersong_protocol.agreement.words import opened_numbers

MENU: tuple[tuple[str, str, Role], ...] = (
    ("/", "Now", "viewer"),
    ("/requests", "Requests", "viewer"),
    ("/budget", "Budget", "viewer"),
    ("/outbox", "Outbox", "viewer"),
    ("/policy", "Policy", "viewer"),
    ("/check", "Check", "viewer"),
    ("/coordinator", "Coordinator", "viewer"),
    ("/log", "Log", "viewer"),
)
# Screen or person that a page names instead of a command in a remedy; the first entry that fits the command counts.
ACTIONS = {
    f"undersong-party{command and ' '}{command}": action
    for commands, action in (
        ("status|pause|resume", ("/", "Now")),
        ("revoke --coordinator|enroll", ("/coordinator", "Coordinator")),
        ("requests|preview|approve|reject|revoke|dossier", ("/requests", "Requests")),
        ("budget|ledger|data add|data refresh", ("/budget", "Budget")),
        ("outbox", ("/outbox", "Outbox")),
        ("policy", ("/policy", "Policy")),
        ("check", ("/check", "Check")),
        ("", ("", "your IT, at the machine of the notes")),
    )
    for command in commands.split("|")
}
# A person at a page has no terminal at which to type the option that decides about such a data set.
AT_THE_MACHINE = "have your IT decide it and add the data set, at the machine of the notes"
# The form's own fields, in the place of the options that the same remedy names for a terminal.
FIELDS_OF_OPTIONS = (
    (r"--same-patient ([a-z,]+)", r'write \1 under "Ids that are one patient although they differ"'),
    (r"--other-patient ([a-z,]+)", r'write \1 under "Ids of different patients although they are alike"'),
    (r"--despite-cautions accepts", 'the tick at "Go on although ..." accepts'),
)
LOG_BYTES = 32_768  # bytes of the end of the daemon's log that the page shows
EVIDENCE_SAVED = ("download", "evidence")  # what the audit log says of whoever saves the evidence
AWAY = "This party's daemon does not run: nothing is answered, and what stands here is what it left."


@dataclass(frozen=True)
class PartyPaths:
    """Paths that the page reads.

    Attributes:
        home: the party's folder.
        checkpoints: the user's folder for heads of ledgers.
        log: the daemon's log file, or None.
        sources: folders whose files may be added as a data set, beside ``incoming`` in the party's folder.
    """

    home: Path
    checkpoints: Path
    log: Path | None = None
    sources: tuple[Path, ...] = ()


def build(paths: PartyPaths, *, hosts: tuple[str, ...], port: int, tls: bool = False) -> Site:
    """Makes the application. Raises ConfigurationError if ``paths.home`` is not a party's folder."""
    party_home = PartyHome(paths.home)
    party_settings = party_home.settings
    settings = PageSettings(
        title=party_settings.party,
        hosts=hosts,
        port=port,
        tls=tls,
        folder=party_home.page,
        menu=MENU,
        packages=("undersong_client.page",),
        notice=PARTY_WORDS if party_settings.drill else "",
        actions=ACTIONS,
        next_step=lambda visit: _next_step(visit, paths.home),
    )
    page_site = Site(settings)
    # Whoever starts another page could otherwise have the rule of two count people whom they have invented.
    page_site.accounts.duties.is_provider_fixed = lambda: policy.read(party_home).two_people
    HospitalPage(page_site, paths)
    return page_site


class HospitalPage:
    """The screens and actions of the page of one party."""

    def __init__(self, site: Site, paths: PartyPaths) -> None:
        self._paths = paths
        self._home = paths.home
        PulseStream(site, lambda _topic: self._pulse())
        site.routes(
            {
                "/": self._now,
                "/requests": self._requests,
                "/requests/{manifest}": self._request,
                "/requests/{manifest}/approve": self._approval,
                "/requests/{manifest}/dossier": self._dossier,
                "/requests/{manifest}/dossier.html": self._dossier_copy,
                "/budget": self._budget,
                "/budget/ledger.jsonl": self._ledger_copy,
                "/outbox": self._outbox,
                "/outbox/{number}": self._message,
                "/outbox/{number}/bytes": self._bytes,
                "/policy": self._policy,
                "/check": self._check,
                "/coordinator": self._coordinator,
                "/log": self._log,
                "/log/evidence.zip": self._evidence,
            }
        )
        action_by_path = {
            "/pause": self._pause,
            "/resume": self._resume,
            "/requests/{manifest}/approve": self._approve,
            "/requests/{manifest}/reject": self._reject,
            "/requests/{manifest}/revoke": self._revoke,
            "/budget": _or_waits("/budget", self._set_budget),
            "/policy": _or_waits("/policy", self._set_policy),
            "/coordinator/package": _or_waits("/coordinator", self._accept),
            "/coordinator/grant": self._install,
            "/coordinator/renew": self._renew,
            "/coordinator/leave": self._leave,
        }
        site.routes({}, action_by_path, least="operator")
        rare_actions = {
            "/budget/data": self._add_data,
            "/policy/duty": self._give_duty,
        }
        site.routes({}, rare_actions, least="administrator")

    # These methods serve every screen.

    def _pulse(self) -> Pulse:
        status = daemon.status(self._home)
        status_facts = {
            fact_name: fact_value
            for fact_name, fact_value in status.to_json().items()
            if fact_name not in ("written_s", "clock_offset_s")
        }
        watched_names = ("requests", "ledger.jsonl", "policy.json", "coordinator.json", "journal.sqlite-wal")
        watched_paths = [
            *(self._home / watched_name for watched_name in watched_names),
            *sorted((self._home / "requests").glob("*.json")),
        ]
        file_states = [status_facts, *((path.name, *file_state(path)) for path in watched_paths)]
        version_hash = hashlib.sha256(json.dumps(file_states, default=str).encode()).hexdigest()[:16]
        return Pulse(version_hash, "" if status.running else AWAY)

    def _live(self) -> dict[str, Any]:
        return {"topic": "party", "pulse": self._pulse().version}

    # These methods serve the screen "Now".

    def _now(self, visit: Visit) -> Response:
        page_parts: dict[str, Part] = {
            "first_steps": lambda: {"steps": _first_steps(self._home)},
            "standing": self._standing,
            "waiting": lambda: {"waiting": [proposal for proposal in runs.requests(self._home) if proposal.undecided]},
            "spending": lambda: {"found": rules.budget(self._home)},
        }
        return visit.page("Now", page_parts, **self._live())

    def _standing(self) -> dict[str, Any]:
        daemon_status = daemon.status(self._home)
        return {"status": daemon_status, "facts": dict(daemon_status.facts)}

    def _pause(self, visit: Visit) -> str:
        daemon.pause(self._home)
        visit.note("pause")
        return visit.go("/", "Paused: nothing is answered until you resume.")

    def _resume(self, visit: Visit) -> str:
        daemon.resume(self._home)
        visit.note("resume")
        return visit.go("/", "This party takes part again.")

    # These methods serve the screens of requests.

    def _requests(self, visit: Visit) -> Response:
        def requests() -> dict[str, Any]:
            proposals = sorted(runs.requests(self._home), key=lambda request: -request.received_s)
            if chosen_decision := visit.query.get("decision"):
                proposals = [request for request in proposals if request.decision == chosen_decision]
            if search_text := visit.query.get("find", "").strip().lower():
                proposals = [request for request in proposals if search_text in request.run.lower()]
            listing = visit.listed(proposals)
            return {
                "wanted": chosen_decision or "",
                "text": visit.query.get("find", ""),
                "stages": runs.stages(self._home, listing["rows"]),
                **listing,
            }

        return visit.page("Requests", {"requests": requests}, **self._live())

    def _request(self, visit: Visit) -> Response:
        manifest = visit.path["manifest"]

        def decision() -> dict[str, Any]:
            shown_proposal = self._find(manifest)
            return {
                "request": shown_proposal,
                "roles": _roles(visit),
                "reject_is_final": REJECT_IS_FINAL,
                "withdrawal": WITHDRAWAL,
                "own_part": runs.own_part(self._home, shown_proposal),
                "others": runs.others_part(self._home, shown_proposal),
            }

        page_parts: dict[str, Part] = {
            "decision": decision,
            "sheet": lambda: self._sheet(self._find(manifest)),
        }
        return visit.page("A run asks for this party", page_parts, **self._live())

    def _sheet(self, request: Any) -> dict[str, Any]:
        run_preview = runs.preview(self._home, request.manifest, checkpoints=self._paths.checkpoints)
        return {"sheet": run_preview.sheet, "sheet_page": run_preview.page}

    def _find(self, manifest: str) -> Any:
        proposal = next((request for request in runs.requests(self._home) if request.manifest == manifest), None)
        if proposal is None:
            raise ConfigurationError("no plan with this hash was proposed to this party", "see the list of requests")
        return proposal

    def _dossier(self, visit: Visit) -> Response:
        manifest = visit.path["manifest"]
        return visit.page(
            "Dossier", {"dossier": lambda: {"dossier": self._dossier_page(manifest), "manifest": manifest}}
        )

    def _dossier_copy(self, visit: Visit) -> Response:
        dossier_page = self._dossier_page(visit.path["manifest"])
        visit.note("download", dossier_page.title)
        return download(dossier_page.html(at=_utc(time.time())).encode(), f"{dossier_page.title}.html")

    def _dossier_page(self, manifest: str) -> PrintedPage:
        return dossier.dossier(self._home, self._find(manifest).manifest, audit=None, format_local_time=_utc)

    def _approval(self, visit: Visit) -> Response:
        approved_proposal = self._find(visit.path["manifest"])
        context = self._sheet(approved_proposal)
        # The words come from the first step or from the telephone: whoever copies them from here has compared nothing.
        sections = tuple(sheet_section for sheet_section in context["sheet_page"].sections if not sheet_section.aloud)
        context["sheet_page"] = replace(context["sheet_page"], sections=sections)
        return visit.show(
            "approval.html.j2", "Approve this plan", request=approved_proposal, roles=_roles(visit), **context
        )

    def _approve(self, visit: Visit) -> str:
        approved_proposal = self._find(visit.path["manifest"])

        if not (typed_words := visit.form.get("words", "").strip()):
            raise ConfigurationError("the plan's words were not typed", "type the nine words of the sheet")
        try:
            proposal = runs.approve(
                self._home,
                approved_proposal.manifest,
                words=typed_words,
                person=_person(visit, "comment"),
                checkpoints=self._paths.checkpoints,
                sheet=visit.form.get("sheet", ""),
                confirm=lambda cautions: _check_despite_tick(visit, cautions),
            )
        except runs.AnotherSheet as error:
            message = f"Not signed: {error.problem}. Read it again."
            return visit.go(f"/requests/{approved_proposal.manifest}/approve", message, "bad")
        if proposal.decision != "approved":
            return visit.go(f"/requests/{approved_proposal.manifest}", "A second person must approve too.", "news")
        return visit.go(f"/requests/{approved_proposal.manifest}", "Approved, and signed by this party's key.")

    def _reject(self, visit: Visit) -> str:
        rejected_proposal = self._find(visit.path["manifest"])
        if visit.form.get("sure") != "yes":
            raise ConfigurationError("the rejection was not confirmed", "tick that you reject the plan for good")
        runs.reject(self._home, rejected_proposal.manifest, _person(visit, "reason"))
        return visit.go(f"/requests/{rejected_proposal.manifest}", "Rejected. The operator reads your reason.")

    def _revoke(self, visit: Visit) -> str:
        approved_proposal = self._find(visit.path["manifest"])
        visit.check_typed(approved_proposal.run)
        runs.revoke(self._home, approved_proposal.run, _person(visit, "reason"), checkpoints=self._paths.checkpoints)
        return visit.go(f"/requests/{approved_proposal.manifest}", "Withdrawn: nothing more of this run leaves.")

    # These methods serve the screens of the budget and the ledger.

    def _budget(self, visit: Visit) -> Response:
        def budget() -> dict[str, Any]:
            budget_facts = rules.budget(self._home)
            total_epsilon = budget_facts.allowed.total_epsilon
            spent_epsilon = budget_facts.spent
            used_share = (
                spent_epsilon / total_epsilon if spent_epsilon is not None and 0 < total_epsilon < math.inf else None
            )
            delta, proposal_words = rules.proposed_delta(self._home)
            return {
                "found": budget_facts,
                "delta": delta,
                "proposal": proposal_words,
                "used": used_share,
            }

        party_home = PartyHome(self._home)
        page_parts: dict[str, Part] = {
            "dataset": lambda: {
                "settings": party_home.settings,
                "folders": self._sources(),
                "kinds": KINDS,
                "rows": own_figures(party_home).rows() if party_home.settings.data else (),
            },
            "budget": budget,
            "ledger": lambda: {"facts": data.ledger(self._home, verify=True) if party_home.ledger.exists() else None},
        }
        return visit.page("Data and budget", page_parts, **self._live())

    def _set_budget(self, visit: Visit) -> str:
        epsilon = _figure(visit, "epsilon")
        budget_facts = rules.set_budget(
            self._home,
            epsilon=epsilon,
            delta=_figure(visit, "delta"),
            per_run=min(epsilon, rules.show(self._home).allowed.run_epsilon),
            person=_person(visit),
            confirm=lambda cautions: _check_despite_tick(visit, cautions),
        )
        message = " ".join(["The budget is set.", *budget_facts.warnings])
        return visit.go("/budget", message, "warn" if budget_facts.warnings else "done")

    def _add_data(self, visit: Visit) -> str:
        field_names = ("file", "text_field", "label_field", "user_field", "user_is", "period")
        file, text_field, label_column, user_column, user_is, period = (
            visit.form.get(field_name, "").strip() for field_name in field_names
        )
        settings = PartyHome(self._home).settings
        # The list of objections and the decisions about ids go on: a form without them is no decision.
        declared_source = replace(
            Declared.of(settings),
            data=file,
            text_field=text_field,
            label_field=label_column,
            user_field=user_column,
            user_is=chosen_user_is(settings, user_column, user_is),
            period=period,
            database=settings.database if file.endswith(".sql") else "",
        ).decided(visit.form.get("same_patient", ""), visit.form.get("other_patient", ""))
        declared_source.check_names()
        former_file = settings.data
        # Whoever named the data set before may have read it from anywhere, but a link in it leads nowhere else.
        self._check_inside(file, *([os.path.realpath(former_file)] if former_file and file == former_file else []))
        try:
            added_data = data.add(
                self._home,
                declared_source,
                checkpoints=self._paths.checkpoints,
                options=AdditionOptions(
                    new_version=bool(former_file), confirm=lambda cautions: _check_despite_tick(visit, cautions)
                ),
            )
        except ConfigurationError as error:
            raise ConfigurationError(error.problem, _remedy_of_form(error.remedy), code=error.code) from None
        visit.note("data add", f"data set {added_data.ledger.fingerprint[:12]}")
        lapse_words = f" Note: {added_data.lapse_words}." if added_data.lapse_words else ""
        return visit.go("/budget", f"The data set is sealed here; nothing was sent.{lapse_words}")

    def _check_inside(self, file: str, *further: str) -> None:
        """Raises ConfigurationError unless a file, or a folder with all its links, is in one of the page's folders."""
        source_folders, clean_path = [*self._sources(), *further], file.replace("\0", "")
        for path in chain((clean_path,), _links_below(clean_path)):  # nothing is looked for in a folder that is outside
            if not any(Path(os.path.realpath(path)).is_relative_to(folder) for folder in source_folders):
                raise ConfigurationError(
                    f"{printable(file if path == clean_path else path, 200)} is in no folder of which this page adds"
                    " files",
                    "have IT move it into one of the folders that stand beside the form, or start the page with"
                    " --data-folder",
                    code="outside-the-folders",
                )

    def _sources(self) -> list[str]:
        """Folders whose files may be added here, links followed: whoever asks must learn of no other file."""
        return [os.path.realpath(folder) for folder in (self._home / "incoming", *self._paths.sources)]

    def _ledger_copy(self, visit: Visit) -> Response:
        path = PartyHome(self._home).ledger
        if not path.exists():
            raise ConfigurationError("this party has no ledger yet", "add a data set first")
        visit.note("download", "ledger")
        return download(path.read_bytes(), f"{PartyHome(self._home).settings.party}.ledger.jsonl")

    # These methods serve the screens of the outbox.

    def _outbox(self, visit: Visit) -> Response:
        def messages() -> dict[str, Any]:
            page_number = visit.page_number
            newest_entries = outbox.listed(
                self._home, run=visit.query.get("run") or None, last=page_number * PAGE_ROWS + 1
            )
            page_rows = newest_entries[(page_number - 1) * PAGE_ROWS : page_number * PAGE_ROWS]
            return {
                "rows": page_rows,
                "page": page_number,
                "of": page_number + (len(newest_entries) > page_number * PAGE_ROWS),
            }

        return visit.page("Outbox", {"messages": messages}, **self._live())

    def _message(self, visit: Visit) -> Response:
        def message() -> dict[str, Any]:
            sent_message = outbox.message(self._home, _entry_number(visit))
            return {"message": sent_message, "decoded": json_text(sent_message.decoded)}

        return visit.page(f"Message {_entry_number(visit)}", {"message": message})

    def _bytes(self, visit: Visit) -> Response:
        sent_message = outbox.message(self._home, _entry_number(visit))
        visit.note("download", f"outbox {sent_message.entry.number}")
        return download(sent_message.data, f"outbox-{sent_message.entry.number}.bin")

    # These methods serve the screen of the policy.

    def _policy(self, visit: Visit) -> Response:
        page_parts: dict[str, Part] = {
            "policy": lambda: {
                "found": (policy_facts := rules.show(self._home)),
                "questions": statistics.QUESTIONS,
                "wish": two_people.pending_wish(PartyHome(self._home)),
                "duties": visit.site.accounts.duties.all(),
                "roles_of_two": ROLES_OF_TWO,
                "form_fields": form_fields(PolicyRules),
                "decider_choices": decider_choices(),
                "opened_numbers": opened_numbers(policy_facts.allowed.minimum_parties - 1),
                "reject_is_final": REJECT_IS_FINAL,
                "guesses": [
                    (epsilon, _cases(epsilon, policy_facts.allowed.total_delta))
                    for epsilon in sorted({1.0, 4.0, 8.0, policy_facts.allowed.run_epsilon} - {0.0})
                ],
            },
        }
        return visit.page("Policy", page_parts)

    def _set_policy(self, visit: Visit) -> str:
        required_lines = [line.strip() for line in visit.form.get("required_parties", "").splitlines() if line.strip()]
        approval = visit.form.get("approval", "each")
        simple_rules = {
            rule_name: visit.form[rule_name] for rule_name in form_fields(PolicyRules) if rule_name in visit.form
        }
        options = PolicyOptions(
            questions=list(visit.lists.get("questions", ())),
            units=list(visit.lists.get("units", ())),
            minimum_parties=_whole(visit, "minimum_others") + 1,
            required_parties=required_lines,
            approval="each" if approval == "two" else approval,
            two_people=approval == "two",
            share_budget="share_budget" in visit.form,
            share_policy="share_policy" in visit.form,
            **simple_rules,
        )
        policy_facts = rules.set_policy(
            self._home,
            options,
            run_epsilon=_figure(visit, "run_epsilon"),
            person=_person(visit),
            confirm=lambda cautions: _check_despite_tick(visit, cautions),
        )
        message = " ".join(["The policy is changed and signed.", *policy_facts.warnings])
        return visit.go("/policy", message, "warn" if policy_facts.warnings else "done")

    def _give_duty(self, visit: Visit) -> str:
        account, duty = (visit.form.get(field_name, "").strip() for field_name in ("account", "duty"))
        visit.site.accounts.person(account)
        two_people.give_duty(PartyHome(self._home), account, duty, by=visit.identities)
        visit.note("policy duty", f"{account}: {duty or 'none'}")
        return visit.go("/policy", "Its role is set. For a day you are none of the two yourself.")

    # These methods serve the screens of the check, the coordinator and the log.

    def _check(self, visit: Visit) -> Response:
        is_online = visit.query.get("network") == "yes"

        def findings() -> dict[str, Any]:
            finding_stream = daemon.check(self._home, checkpoints=self._paths.checkpoints, offline=not is_online)
            return {"findings": list(finding_stream), "online": is_online}

        return visit.page("Check", {"findings": findings})

    def _coordinator(self, visit: Visit) -> Response:
        request_key = visit.query.get("request", "")

        def membership() -> dict[str, Any]:
            is_waiting = bool(request_key) and visit.site.downloads.waits(request_key, visit.person.name)
            return {"found": joining.membership(self._home), "request": request_key if is_waiting else ""}

        return visit.page("Coordinator", {"membership": membership})

    def _accept(self, visit: Visit) -> str:
        fingerprint = visit.form.get("fingerprint", "").strip()
        package_bytes = visit.files.get("package", b"")
        if not package_bytes or not fingerprint:
            raise ConfigurationError("the package or its fingerprint is missing", "give both")
        enrolment_request = joining.accept(self._home, package_bytes, lambda _name: fingerprint, person=_person(visit))
        visit.note("enroll", enrolment_request.fingerprint)
        download_key = visit.offer(f"{enrolment_request.party}.request.json", enrolment_request.data)
        return visit.go(
            f"/coordinator?request={download_key}", "The fingerprints are equal. Hand the request to the operator."
        )

    def _renew(self, visit: Visit) -> str:
        renewal_request = joining.renew(self._home)
        visit.note("renew")
        return visit.go(
            f"/coordinator?request={visit.offer(f'{renewal_request.party}.request.json', renewal_request.data)}"
        )

    def _install(self, visit: Visit) -> str:
        installed_grant = joining.install(self._home, visit.files.get("grant", b""))
        visit.note("enroll grant")
        return visit.go("/coordinator", f"{installed_grant.words[0].upper()}{installed_grant.words[1:]}.")

    def _leave(self, visit: Visit) -> str:
        visit.check_typed(PartyHome(self._home).settings.party)
        runs.leave(self._home, checkpoints=self._paths.checkpoints)
        visit.note("leave coordinator")
        return visit.go("/coordinator", "This party has left the coordinator. The ledger stays.")

    def _evidence(self, visit: Visit) -> Response:
        party = PartyHome(self._home).settings.party
        visit.note(*EVIDENCE_SAVED)
        return download(evidence.save(self._home, format_local_time=_utc), f"{party}.evidence.zip", "application/zip")

    def _log(self, visit: Visit) -> Response:
        def people() -> dict[str, Any]:
            log_entries = visit.site.audit.entries()[::-1]
            return {"checked": len(log_entries), **visit.listed(log_entries)}

        daemon_log = self._paths.log
        page_parts: dict[str, Part] = {
            "people": people,
            "daemon": lambda: {"lines": None if daemon_log is None else _tail(daemon_log)},
        }
        return visit.page("Log", page_parts, **self._live())


def _first_steps(home: Path) -> list[tuple[bool, str, str]]:
    """Steps of a new party: done or not, in words, the screen for it."""
    membership, settings = joining.membership(home), PartyHome(home).settings
    policy_facts = rules.show(home)
    return [
        (
            membership.coordinator is not None,
            "Compare the operator's package, and hand over your request",
            "/coordinator",
        ),
        (membership.valid_until is not None, "Install the operator's answer", "/coordinator"),
        (bool(settings.data), "Add the data set", "/budget"),
        (policy_facts.allowed.has_budget, "Set the budget over all runs", "/budget"),
        (not policy_facts.missing, "Choose what may be asked", "/policy"),
    ]


def _next_step(visit: Visit, home: Path) -> NextStep:
    """The officer's next step: for the request that is shown, else of the first steps, else for what waits."""
    proposals = runs.requests(home)
    shown_proposal = next((request for request in proposals if request.manifest == visit.path.get("manifest")), None)
    if shown_proposal is not None and shown_proposal.undecided:
        return NextStep(
            "Approve or reject it; nothing leaves before you do", f"/requests/{shown_proposal.manifest}/approve"
        )
    first_step = next(
        ((step_words, step_place) for is_done, step_words, step_place in _first_steps(home) if not is_done), None
    )
    if first_step is not None:
        return NextStep(*first_step)
    waiting_proposal = next((request for request in proposals if request.undecided), None)
    if waiting_proposal is not None:
        return NextStep(
            f"Read what {waiting_proposal.run} asks for, and decide", f"/requests/{waiting_proposal.manifest}"
        )
    if not daemon.status(home).running:
        return NextStep("Ask IT to start the service that answers, on the machine of the notes", "/check")
    running_proposal = next(
        (request for request in proposals if request.decision == "approved" and not request.ended_s), None
    )
    if running_proposal is not None:
        waiting_words = f"Wait: {running_proposal.run} goes on by itself, and you may withdraw until it ends"
        return NextStep(waiting_words, f"/requests/{running_proposal.manifest}")
    last_change_s = max((max(request.decided_s, request.ended_s) for request in proposals), default=0.0)
    if last_change_s and not _is_evidence_saved(visit, since_s=last_change_s):
        return NextStep("Save the evidence of your decisions in one file", "/log")
    return NextStep("Nothing: what waits for you stands on Now")


def _is_evidence_saved(visit: Visit, *, since_s: float) -> bool:
    """True if somebody has saved the evidence since then; the whole log is read for it."""
    return any(
        (log_entry.what, log_entry.about) == EVIDENCE_SAVED and log_entry.at >= since_s
        for log_entry in reversed(visit.site.audit.entries())
    )


def _or_waits(screen: str, act: Callable[[Visit], str]) -> Callable[[Visit], str]:
    """Returns the action, which leads back to its screen where a second person has to do the same."""

    def act_or_wait(visit: Visit) -> str:
        try:
            return act(visit)
        except two_people.WaitsForSecondPerson as waits:
            return visit.go(screen, f"N{waits.problem[1:]}: {waits.remedy}.", "news")

    return act_or_wait


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError as error:
        raise ConfigurationError(
            f"{path}: cannot be read: {error.strerror}", "have IT name another one where this page is started"
        ) from None


def _utc(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def _roles(visit: Visit) -> tuple[str, ...]:
    """Roles that a person may state: only the one that was given to the account, where one was."""
    account_duty = visit.site.accounts.duties.of(visit.person.name)
    return ROLES if account_duty is None else (account_duty.name,)


def _person(visit: Visit, comment: str = "") -> Person:
    """The person who decides: the account and its log-in, with the name that the form states.

    A role that an administrator or a group gave takes the place of the form's. ``comment`` names the comment's field.
    """
    person_name, role, comment_words = (
        visit.form.get(field_name, "").strip() for field_name in ("name", "role", comment)
    )
    if not comment:
        person_name, role = visit.person.name, "other"
    role_source = ""
    account_duty, session = visit.site.accounts.duties.of(visit.person.name), visit.session
    if account_duty is not None:
        role, role_source = account_duty.name, account_duty.source
    person = Person(person_name, role, comment_words, account=visit.person.name, role_from=role_source)
    if session is None:
        return person
    return replace(
        person, log_in=session.log_in, issuer=session.issuer, subject=session.subject, let_in_by=session.let_in_by
    )


def _links_below(folder: str) -> Iterator[str]:
    """The links in a folder and below it, none of which is followed; nothing for a file."""
    for folder_path, folder_names, files in os.walk(folder):
        yield from (
            path
            for entry_name in (*folder_names, *files)
            if os.path.islink(path := os.path.join(folder_path, entry_name))
        )


def _check_despite_tick(visit: Visit, cautions: Sequence[str]) -> None:
    if cautions and not visit.form.get("despite"):
        form_remedy = _remedy_of_form(caution_remedy(cautions, "or tick that you go on despite it"))
        raise ConfigurationError(f"your records speak against it: {'; '.join(cautions)}", form_remedy)


def _remedy_of_form(remedy: str) -> str:
    """Returns a remedy that names the form's fields in the place of options, or IT if an option has no field."""
    for option_words, field_words in FIELDS_OF_OPTIONS:
        remedy = re.sub(option_words, field_words, remedy)
    return AT_THE_MACHINE if named_options(remedy) else remedy


def _figure(visit: Visit, field_name: str) -> float:
    figure_text = visit.form.get(field_name, "").strip()
    try:
        return float(figure_text)
    except ValueError:
        raise ConfigurationError(
            f"{field_name}: {figure_text!r} is not a number", "write for example 4 or 1e-5"
        ) from None


def _whole(visit: Visit, field_name: str) -> int:
    number_text = visit.form.get(field_name, "").strip()
    if not is_number(number_text):
        raise ConfigurationError(f"{field_name}: {number_text!r} is not a whole number", "write for example 3")
    return int(number_text)


def _entry_number(visit: Visit) -> int:
    number_text = visit.path["number"]
    if not is_number(number_text):
        raise ConfigurationError(f"the outbox has no entry {number_text!r}", "see the list")
    return int(number_text)


def _cases(epsilon: float, delta: float) -> str:
    """Cases of 100 in which the best guess about one unit is right, in a run of Gaussian sums."""
    right_share = accounting.best_guess_of(epsilon, delta, one_gaussian=True)
    return f"{impact.cases(right_share)} of 100 cases{impact.protection_words(right_share)}"
