"""The console's screens for the parties: list, invite, sign, revoke."""

from __future__ import annotations

import math
from typing import Any
from urllib.parse import quote

from fastapi.responses import Response

from undersong_common.errors import ConfigurationError
from undersong_common.pages.site import Site, Visit
from undersong_server import defaults
from undersong_server.console.context import ConsoleContext
from undersong_server.operations import coordinator, enrolment, overview
from undersong_server.operations.enrolment import PartyFacts


class PartyScreens:
    """Mounts its routes on ``site``."""

    def __init__(self, site: Site, context: ConsoleContext) -> None:
        self._context = context
        self._home = context.home
        site.routes({"/parties": self._list, "/parties/one/{name}": self._one})
        site.routes(
            {"/parties/invite": self._invite_form, "/parties/sign": self._sign_form},
            {
                "/parties/invite": self._invite,
                "/parties/sign": self._sign,
                "/parties/one/{name}/revoke": self._revoke,
            },
            least="operator",
        )

    def _list(self, visit: Visit) -> Response:
        find, state = visit.query.get("find", "").strip(), visit.query.get("state", "")

        def parties() -> dict[str, Any]:
            every = enrolment.parties(self._home)
            found = overview.fitting(every, find=find, state=state)
            models = overview.embedders(every)
            common = max(models, key=lambda name: models[name], default="")
            listed = overview.page(found, visit.page_number)
            return {"listed": listed, "find": find, "state": state, "common": common, "differ": len(models) > 1}

        return visit.page("Parties", {"parties": parties}, **self._context.live("all"))

    def _one(self, visit: Visit) -> Response:
        name = visit.path["name"]
        return visit.page(name, {"party": lambda: {"facts": self._find(name)}}, **self._context.live("all"))

    def _find(self, name: str) -> PartyFacts:
        found = next((each for each in enrolment.parties(self._home) if each.party.name == name), None)
        if found is None:
            raise ConfigurationError("there is no such party", "see the list of parties")
        return found

    def _invite_form(self, visit: Visit) -> Response:
        key, name = visit.query.get("package", ""), visit.query.get("name", "")
        waits = visit.site.downloads.waits(key, visit.person.name)
        return visit.show(
            "invite.html.j2",
            "Invite a hospital",
            facts=coordinator.show(self._home),
            package=key if waits else "",
            made=name,
            days=defaults.INVITATION_DAYS,
        )

    def _invite(self, visit: Visit) -> str:
        name = visit.form.get("name", "").strip()
        made = enrolment.invite(
            self._home,
            name,
            days=_days(visit.form.get("days", "")),
            again="again" in visit.form,
            contact=visit.form.get("contact", "").strip(),
        )
        visit.note("invite", name)
        key = visit.offer(f"{name}.package", made.package)
        return visit.go(f"/parties/invite?package={key}&name={quote(name)}")

    def _sign_form(self, visit: Visit) -> Response:
        key, name = visit.query.get("grant", ""), visit.query.get("name", "")
        waits = visit.site.downloads.waits(key, visit.person.name)
        return visit.show("sign.html.j2", "Sign a hospital's request", grant=key if waits else "", made=name)

    def _sign(self, visit: Visit) -> str:
        stated = visit.form.get("fingerprint", "").strip()
        enrolled = enrolment.sign(
            self._home,
            visit.files.get("request", b""),
            fingerprint=stated or None,
            replaces=visit.form.get("replaces", "").strip() or None,
        )
        visit.note("sign", f"{enrolled.party} {enrolled.kind}, request {enrolled.request_fingerprint}")
        key = visit.offer(f"{enrolled.party}.grant", enrolled.grant)
        result = {
            "enrolled": "is enrolled",
            "renewed": "has a new certificate",
            "replaced": "has another key from now on",
        }
        message = f"The fingerprints match: {enrolled.party} {result[enrolled.kind]}."
        return visit.go(f"/parties/sign?grant={key}&name={quote(enrolled.party)}", message if stated else "Renewed.")

    def _revoke(self, visit: Visit) -> str:
        name = visit.path["name"]
        visit.check_typed(name)
        enrolment.revoke(self._home, name, visit.form.get("reason", "").strip())
        visit.note("revoke", name)
        return visit.go(f"/parties/one/{quote(name)}", f"{name} is revoked; its stream ends within seconds.")


def _days(text: str) -> float:
    try:
        days = float(text or defaults.INVITATION_DAYS)
    except ValueError:
        days = math.nan
    if not 0 < days <= 365:
        raise ConfigurationError(f"{text!r} days: an invitation is open for up to 365", "write for example 14")
    return days
