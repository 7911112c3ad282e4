"""The console's screens for generators, the audit log and accounts, and the API for scripts."""

from __future__ import annotations

from typing import Any

from fastapi.responses import Response

from undersong_common.errors import ConfigurationError
from undersong_common.pages.accounts import ROLES
from undersong_common.pages.site import Site, Visit, download, is_number, json_answer
from undersong_server import defaults
from undersong_server.console.context import ConsoleContext
from undersong_server.operations import enrolment, generators, overview, runs

RUNS_COUNTED = 50


class OversightScreens:
    """Mounts its routes on ``site``."""

    def __init__(self, site: Site, context: ConsoleContext) -> None:
        self._context = context
        self._home = context.home
        site.routes(
            {
                "/generators": self._generators,
                "/audit": self._audit,
                "/audit/audit.jsonl": self._audit_file,
                "/api/parties": lambda _: json_answer([each.to_json() for each in enrolment.parties(self._home)]),
                "/api/runs": lambda _: json_answer([each.to_json() for each in context.index.runs()]),
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

    # Generators

    def _generators(self, visit: Visit) -> Response:
        newest = [run.run for run in self._context.index.runs()[:RUNS_COUNTED]]
        return visit.page(
            "Generators", {"generators": lambda: {"used": generators.usage(self._home, newest), "runs": newest}}
        )

    def _test(self, visit: Visit) -> str:
        run, name = visit.form.get("run", ""), visit.form.get("generator", "")
        tried = generators.try_in_run(
            self._home, run, name, environment=self._context.environment, public_cache=self._context.public_cache
        )
        visit.note("generator test", f"{name} of {run}")
        return visit.go("/generators", f"{name} answered in {tried.cost}: {tried.answer}")

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
        return download(overview.support_bundle(self._home), "undersong-support.zip", "application/zip")

    # People

    def _people(self, visit: Visit) -> Response:
        key = visit.query.get("secret", "")
        secret = ""
        if visit.site.downloads.waits(key, visit.person.name):
            secret = visit.site.downloads.take(key, visit.person.name).data.decode()
        own = visit.session.number if visit.session is not None else 0
        accounts = visit.site.accounts

        def people() -> dict[str, Any]:
            listed = {"people": accounts.people(), "sessions": accounts.sessions(), "tokens": accounts.tokens()}
            return {**listed, "roles": ROLES, "secret": secret, "own": own}

        return visit.page("People", {"people": people})

    def _set_person(self, visit: Visit) -> str:
        account = visit.site.accounts.set_role(visit.form.get("name", "").strip(), visit.form.get("role", ""))
        visit.note("set role", f"{account.name}: {account.role}")
        return visit.go("/people", f"{account.name} is {account.role}. Make a link with which they log in.")

    def _link(self, visit: Visit) -> str:
        name = visit.form.get("name", "")
        secret = visit.site.accounts.link(name)
        visit.note("link", name)
        address = f"{visit.request.url.scheme}://{visit.request.headers['host']}/enter#{secret}"
        key = visit.offer("link", f"Lets {name} in once, within 15 minutes: {address}".encode())
        return visit.go(f"/people?secret={key}")

    def _remove(self, visit: Visit) -> str:
        name = visit.form.get("name", "")
        visit.check_typed(name)
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
