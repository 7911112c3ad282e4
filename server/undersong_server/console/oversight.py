"""The console's screens for generators, the audit log, people, and what a script may read."""

from __future__ import annotations

from typing import Any

from fastapi.responses import Response

from undersong_common.errors import ConfigurationError
from undersong_common.pages.accounts import ROLES
from undersong_common.pages.site import Site, Visit, download, is_number, json_answer
from undersong_common.plurals import counted
from undersong_server import defaults
from undersong_server.console.context import ConsoleContext
from undersong_server.operations import enrolment, overview, probing, runs, support

RUNS_COUNTED = 50


class OversightScreens:
    """Mounts its routes on ``site``."""

    def __init__(self, site: Site, context: ConsoleContext) -> None:
        self._context = context
        self._home = context.home
        site.get("/generators", self._generators)
        site.post("/generators/test", self._test)
        site.get("/audit", self._audit)
        site.get("/audit/audit.jsonl", self._audit_file)
        site.get("/audit/support.zip", self._bundle, least="operator")
        site.get("/people", self._people, least="administrator")
        site.post("/people", self._set_person, least="administrator")
        site.post("/people/link", self._link, least="administrator")
        site.post("/people/remove", self._remove, least="administrator")
        site.post("/people/session", self._end_session, least="administrator")
        site.post("/people/token", self._token, least="administrator")
        site.post("/people/token/end", self._end_token, least="administrator")
        site.get("/api/parties", lambda _: json_answer([each.to_json() for each in enrolment.parties(self._home)]))
        site.get("/api/runs", lambda _: json_answer([each.to_json() for each in context.index.runs()]))
        site.get("/api/runs/{run}", lambda visit: json_answer(runs.show(self._home, visit.path["run"]).to_json()))

    # Generators

    def _generators(self, visit: Visit) -> Response:
        def generators() -> dict[str, Any]:
            newest = [run.run for run in self._context.index.runs()[:RUNS_COUNTED]]
            return {"used": probing.usage(self._home, newest, self._context.plans), "runs": newest}

        return visit.page("Generators", {"generators": generators})

    def _test(self, visit: Visit) -> str:
        run, name = visit.form.get("run", ""), visit.form.get("generator", "")
        probe = probing.call(
            self._home, run, name, environment=self._context.environment, public_cache=self._context.public_cache
        )
        visit.note("generator test", f"{name} of {run}")
        took = f"{probe.seconds:.2f} s, {counted(probe.tokens, 'token')}, US$ {probe.price_usd:.4f}"
        answer = f"{name} answered in {took}: {probe.text}"
        return visit.go("/generators", answer if not probe.problem else f"{name} gave no text: {probe.problem}")

    # Audit

    def _audit(self, visit: Visit) -> Response:
        find = visit.query.get("find", "").strip().casefold()

        def audit() -> dict[str, Any]:
            every = visit.site.audit.entries()[::-1]
            found = [each for each in every if find in f"{each.who} {each.what} {each.about}".casefold()]
            return {
                "checked": len(every),
                "find": visit.query.get("find", ""),
                "listed": overview.page(found, visit.page_number),
            }

        return visit.page("Audit", {"audit": audit})

    def _audit_file(self, visit: Visit) -> Response:
        path = visit.site.audit.path
        return download(path.read_bytes() if path.exists() else b"", "audit.jsonl")

    def _bundle(self, visit: Visit) -> Response:
        visit.note("support bundle")
        return download(support.bundle(self._home), "undersong-support.zip", "application/zip")

    # People

    def _people(self, visit: Visit) -> Response:
        key = visit.query.get("secret", "")
        secret = ""
        if visit.site.downloads.waits(key, visit.person.name):
            secret = visit.site.downloads.take(key, visit.person.name).data.decode()

        def people() -> dict[str, Any]:
            accounts = visit.site.accounts
            own = visit.session.number if visit.session is not None else 0
            shown = {"people": accounts.people(), "sessions": accounts.sessions(), "tokens": accounts.tokens()}
            return {**shown, "roles": ROLES, "secret": secret, "own": own}

        return visit.page("People", {"people": people})

    def _set_person(self, visit: Visit) -> str:
        account = visit.site.accounts.set_role(visit.form.get("name", "").strip(), visit.form.get("role", ""))
        visit.note("set role", f"{account.name}: {account.role}")
        return visit.go("/people", f"{account.name} is {account.role}. Make a link to let them in.")

    def _link(self, visit: Visit) -> str:
        name = visit.form.get("name", "")
        secret = visit.site.accounts.link(name)
        visit.note("link", name)
        address = f"{visit.request.url.scheme}://{visit.request.headers['host']}/enter#{secret}"
        key = visit.offer("link", f"Lets {name} in once, within 15 minutes: {address}".encode())
        return visit.go(f"/people?secret={key}")

    def _remove(self, visit: Visit) -> str:
        name = visit.form.get("name", "")
        if visit.form.get("typed", "").strip() != name:
            raise ConfigurationError(f"what you typed is not {name!r}", "type the name exactly")
        visit.site.accounts.remove(name)
        visit.note("remove person", name)
        return visit.go("/people", f"{name} is removed; their sessions and tokens have ended.")

    def _end_session(self, visit: Visit) -> str:
        number = visit.form.get("number", "")
        if not is_number(number):
            raise ConfigurationError("no session was named", "see the list")
        visit.site.accounts.end_number(int(number))
        visit.note("end session", number)
        return visit.go("/people", "The session has ended.")

    def _token(self, visit: Visit) -> str:
        name, label = visit.form.get("name", ""), visit.form.get("label", "").strip() or "script"
        token = visit.site.accounts.make_token(name, label, days=defaults.TOKEN_DAYS)
        visit.note("make token", f"{name}: {label}")
        key = visit.offer(
            "token", f"The token {label} of {name}, valid for {defaults.TOKEN_DAYS:.0f} days: {token}".encode()
        )
        return visit.go(f"/people?secret={key}")

    def _end_token(self, visit: Visit) -> str:
        visit.site.accounts.end_token(visit.form.get("token", ""))
        visit.note("end token", visit.form.get("token", ""))
        return visit.go("/people", "The token has ended.")
