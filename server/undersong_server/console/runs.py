"""The console's screens for runs: the list, a new one, one under way, its result, several side by side."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from fastapi.responses import Response

from undersong_common.errors import ConfigurationError
from undersong_common.pages.site import Site, Visit, download, is_number
from undersong_server import defaults
from undersong_server.console import charts
from undersong_server.console.context import ConsoleContext, typed
from undersong_server.operations import drafts, enrolment, following, overview, results, runs, watching

STATES = ("planned", "waiting", "running", "paused", "stopped", "finished", "failed")
ACTIONS = {
    "start": (runs.start, "Started: the parties are asked."),
    "pause": (runs.pause, "It pauses at its next step; nothing is lost."),
    "resume": (runs.resume, "It goes on."),
    "stop": (runs.stop, "It ends for good at its next step."),
}
TEXTS_SHOWN = 12
REPORT_POLICY = "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"


class RunScreens:
    """Mounts its routes on ``site``."""

    def __init__(self, site: Site, context: ConsoleContext) -> None:
        self._context = context
        self._home = context.home
        site.get("/runs", self._list)
        site.get("/runs/new", self._sources, least="operator")
        site.post("/runs/new", self._draft)
        site.get("/runs/new/{draft}", self._form, least="operator")
        site.post("/runs/new/{draft}", self._change)
        site.post("/runs/new/{draft}/plan", self._plan)
        site.get("/runs/one/{run}", self._one)
        for action in ACTIONS:
            site.post(f"/runs/one/{{run}}/{action}", partial(self._act, action))
        site.get("/runs/one/{run}/result", self._result)
        site.get("/runs/one/{run}/file/{name}", self._file)
        site.get("/runs/one/{run}/report", self._report)
        site.get("/compare", self._compare)

    # Lists and new runs

    def _list(self, visit: Visit) -> Response:
        find, state = visit.query.get("find", "").strip(), visit.query.get("state", "")

        def listed() -> dict[str, Any]:
            everything = self._context.index.runs()
            found = [
                run
                for run in everything
                if find.casefold() in run.run.casefold() and (not state or run.status.state == state)
            ]
            shown = overview.page(found, visit.page_number)
            return {"listed": shown, "find": find, "state": state, "states": STATES, "any": bool(everything)}

        return visit.page("Runs", {"runs": listed}, **self._context.live("all"))

    def _sources(self, visit: Visit) -> Response:
        files = drafts.offered(self._context.tasks)
        earlier = self._context.index.runs()[:50]
        return visit.show("sources.html.j2", "New run", files=files, earlier=earlier)

    def _draft(self, visit: Visit) -> str:
        uploaded, chosen = visit.files.get("task", b""), visit.form.get("source", "")
        if uploaded:
            draft = drafts.from_bytes(self._home, "the uploaded file", uploaded)
        elif chosen.startswith("file "):
            offered = {str(path): path for path in drafts.offered(self._context.tasks)}
            path = offered.get(chosen.removeprefix("file "))
            if path is None:
                raise ConfigurationError("this task file is not offered", "choose one of the list")
            draft = drafts.from_file(self._home, path)
        elif chosen.startswith("run "):
            draft = drafts.from_run(self._home, chosen.removeprefix("run "))
        else:
            raise ConfigurationError("no task file was chosen", "choose one, or upload one")
        return visit.go(f"/runs/new/{draft.identity}")

    def _form(self, visit: Visit) -> Response:
        draft = drafts.find(self._home, visit.path["draft"])
        enrolled = [each for each in enrolment.parties(self._home) if each.party.state == "enrolled"]
        asked = visit.query.get("parties")
        chosen = [each.party.name for each in enrolled] if asked is None else enrolment.party_names(asked)

        def plan() -> dict[str, Any]:
            if visit.query.get("plan") != "yes":
                return {"planned": None}
            return {"planned": drafts.plan(self._home, draft, chosen), "chosen": ",".join(chosen)}

        sections: dict[str, list[drafts.TaskField]] = {}
        for each in draft.fields:
            sections.setdefault(each.section, []).append(each)
        return visit.page(
            "New run",
            {"plan": plan},
            template="draft.html.j2",
            draft=draft,
            sections=sections,
            enrolled=enrolled,
            chosen=chosen,
            given={"name": "", "seed": "0", "patience": f"{defaults.PATIENCE_S:.0f}", **visit.query},
        )

    def _change(self, visit: Visit) -> str:
        return visit.go(_plan_address(visit, self._as_sent(visit)))

    def _as_sent(self, visit: Visit) -> drafts.Draft:
        """The draft with what the form says; the very draft where the form says nothing else."""
        texts = {key.removeprefix("key "): value for key, value in visit.form.items() if key.startswith("key ")}
        return drafts.change(self._home, drafts.find(self._home, visit.path["draft"]), texts)

    def _plan(self, visit: Visit) -> str:
        draft = self._as_sent(visit)
        parties = visit.lists.get("party", ())
        # The plan above the form is that of the draft and of these parties: what it does not show is not planned.
        if draft.identity != visit.path["draft"] or ",".join(parties) != visit.form.get("shown_parties"):
            return visit.go(
                _plan_address(visit, draft), "The form had changed: this is its plan now. No run is planned yet."
            )
        planned = runs.plan_task(
            self._home,
            draft.data,
            Path(draft.folder),
            name=visit.form.get("name", "").strip() or None,
            parties=parties,
            seed=_whole(visit.form.get("seed", "0")),
            patience_s=float(_whole(visit.form.get("patience", ""))),
        )
        visit.note("run plan", planned.run)
        return visit.go(f"/runs/one/{quote(planned.run)}", "Planned: nobody is asked until you start it.")

    # One run

    def _one(self, visit: Visit) -> Response:
        run = visit.path["run"]

        def standing() -> dict[str, Any]:
            status = runs.status(self._home, run)
            contacts = dict(watching.contacts(self._home, status))
            because = dict(watching.away_because(self._home, status))
            return {"run": run, "status": status, "contacts": contacts, "away_because": because}

        def timeline() -> dict[str, Any]:
            return {"events": watching.timeline(self._home, run), "now": time.time()}

        def live() -> dict[str, Any]:
            plan = self._context.plans.of(run)
            found = following.live(self._home, run, plan)
            return {
                "live": found,
                "plan": plan,
                "caps": _caps(plan),
                "rate": following.answer_rate,
                "latency": following.mean_latency_s,
                "weights": charts.weights(found),
                "shares": charts.shares(found),
                "epsilon": charts.epsilon(found, plan),
            }

        def texts() -> dict[str, Any]:
            found = following.live(self._home, run, self._context.plans.of(run))
            return {"live": found, "rows": found.texts[:TEXTS_SHOWN]}

        def plan() -> dict[str, Any]:
            facts = self._context.plans.of(run)
            return {"figures": facts.figures, "planned": facts.planned}

        def log() -> dict[str, Any]:
            return {"lines": watching.log(self._home, run)}

        parts = {"standing": standing, "timeline": timeline, "live": live, "texts": texts, "run_plan": plan, "log": log}
        return visit.page(f"Run {run}", parts, template="run.html.j2", run=run, **self._context.live(f"run {run}"))

    def _act(self, action: str, visit: Visit) -> str:
        run = visit.path["run"]
        if action == "stop":
            typed(visit, run)
        act, words = ACTIONS[action]
        requested = act(self._home, run)
        visit.note(f"run {action}", run)
        late = "" if requested.served else " This takes effect once a process serves the parties."
        return visit.go(f"/runs/one/{quote(run)}", words + late)

    # Results

    def _result(self, visit: Visit) -> Response:
        run = visit.path["run"]
        query = {key: visit.query.get(key, "") for key in ("find", "label", "generator")}

        def verdict() -> dict[str, Any]:
            return {"verdict": results.verdict(self._home, run)}

        def files() -> dict[str, Any]:
            return {"files": results.files(self._home, run), "run": run}

        def corpus() -> dict[str, Any]:
            found = results.search(self._home, run, **query)
            return {
                "found": found,
                "listed": overview.page(found.texts, visit.page_number),
                "wanted": query,
                "run": run,
            }

        def card() -> dict[str, Any]:
            return {"card": results.read_file(self._home, run, "README.md").decode("utf-8", "replace")}

        parts = {"verdict": verdict, "files": files, "corpus": corpus, "card": card}
        return visit.page(f"Result of {run}", parts, run=run)

    def _file(self, visit: Visit) -> Response:
        run, name = visit.path["run"], visit.path["name"]
        data = results.read_file(self._home, run, name)
        visit.note("export", f"{run}: {name}")
        return download(data, f"{run}-{name}")

    def _report(self, visit: Visit) -> Response:
        """The report as it was published: its own small script runs in a sandbox without origin, cookies or network."""
        data = results.read_file(self._home, visit.path["run"], "report.html")
        return Response(data, media_type="text/html; charset=utf-8", headers={"content-security-policy": REPORT_POLICY})

    def _compare(self, visit: Visit) -> Response:
        named = visit.request.query_params.getlist("run")[:6]

        def compared() -> dict[str, Any]:
            every = results.compare(self._home, named, self._context.plans)
            generators = list(dict.fromkeys(name for each in every for name in each.weights))
            quality = list(dict.fromkeys(name for each in every for name in each.quality))
            figures = list(dict.fromkeys(name for each in every if each.evaluated for name in each.evaluated.figures))
            return {"compared": every, "generators": generators, "quality": quality, "figures": figures}

        choices = [run.run for run in self._context.index.runs()[:200]]
        return visit.page(
            "Compare runs", {"compared": compared}, template="compare.html.j2", named=named, choices=choices
        )


def _plan_address(visit: Visit, draft: drafts.Draft) -> str:
    """Where the plan of a draft is shown, with the parties and the run's settings that the form says."""
    given = {key: visit.form[key] for key in ("name", "seed", "patience") if key in visit.form}
    asked = {"plan": "yes", "parties": ",".join(visit.lists.get("party", ())), **given}
    return f"/runs/new/{draft.identity}?{urlencode(asked)}"


def _caps(plan: following.RunPlanFacts) -> dict[str, str]:
    """Each generator's limits in words; no entry for one without any."""
    found: dict[str, list[str]] = {}
    for table in plan.planned.task.get("generators", ()):
        if table.get("price_budget_usd") is not None:
            found.setdefault(str(table["name"]), []).append(f"US$ {table['price_budget_usd']:g}")
        if table.get("token_budget") is not None:
            found.setdefault(str(table["name"]), []).append(f"{table['token_budget']:,} tokens")
    return {name: ", ".join(limits) for name, limits in found.items()}


def _whole(text: str) -> int:
    if not is_number(text.strip()):
        raise ConfigurationError(f"{text!r} is not a whole number", "write for example 120")
    return int(text)
