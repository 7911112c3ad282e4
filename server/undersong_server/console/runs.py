"""The console's screens for runs: list, new run, one run, its result, comparison."""

from __future__ import annotations

import time
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from fastapi.responses import Response

from undersong_common.errors import ConfigurationError
from undersong_common.pages.site import Part, Site, Visit, download, is_number
from undersong_server import defaults
from undersong_server.console.context import ConsoleContext
from undersong_server.defaults import RunOptions
from undersong_server.operations import drafts, enrolment, following, overview, releases, runs
from undersong_server.operations.following import LiveRun, RunPlanFacts

STATES = ("planned", "waiting", "running", "paused", "stopped", "finished", "failed")
ACTIONS = {
    "start": (runs.start, "Started: the parties are asked to approve."),
    "pause": (runs.pause, "The run pauses at its next step; nothing is lost."),
    "resume": (runs.resume, "The run continues."),
    "stop": (runs.stop, "The run ends for good at its next step."),
}
TEXTS_SHOWN = 12
NOISE_DEVIATIONS = 2.0  # half height of a chart's noise band, in standard deviations
REPORT_POLICY = "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"


class RunScreens:
    """Mounts its routes on ``site``."""

    def __init__(self, site: Site, context: ConsoleContext) -> None:
        self._context = context
        self._home = context.home
        one = "/runs/one/{run}"
        site.routes(
            {
                "/runs": self._list,
                one: self._one,
                f"{one}/result": self._result,
                f"{one}/file/{{name}}": self._file,
                f"{one}/report": self._report,
                "/compare": self._compare,
            }
        )
        site.routes(
            {"/runs/new": self._sources, "/runs/new/{draft}": self._form},
            {
                "/runs/new": self._draft,
                "/runs/new/{draft}": self._change,
                "/runs/new/{draft}/plan": self._plan,
                **{f"{one}/{action}": partial(self._act, action) for action in ACTIONS},
            },
            least="operator",
        )

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
            draft = drafts.from_bytes(self._home, "the uploaded file", uploaded, self._context.tasks)
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
            made = runs.preview(self._home, draft.data, Path(draft.folder), chosen, check=self._limits(draft))
            return {"planned": made, "chosen": ",".join(chosen)}

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

    def _limits(self, draft: drafts.Draft) -> drafts.Limits:
        return drafts.Limits(self._home, draft, self._context.tasks, self._context.keys)

    def _change(self, visit: Visit) -> str:
        return visit.go(_plan_address(visit, self._as_sent(visit)))

    def _as_sent(self, visit: Visit) -> drafts.Draft:
        """Returns the draft with the form's values; the same draft if none differs."""
        texts = {key.removeprefix("key "): value for key, value in visit.form.items() if key.startswith("key ")}
        return drafts.change(self._home, drafts.find(self._home, visit.path["draft"]), texts)

    def _plan(self, visit: Visit) -> str:
        draft = self._as_sent(visit)
        parties = visit.lists.get("party", ())
        # Only what the plan on the page shows is planned: this draft, with these parties.
        if draft.identity != visit.path["draft"] or ",".join(parties) != visit.form.get("shown_parties"):
            return visit.go(
                _plan_address(visit, draft), "The form has changed: check its new plan. No run is planned yet."
            )
        planned = runs.plan_task(
            self._home,
            draft.data,
            Path(draft.folder),
            RunOptions(
                name=visit.form.get("name", "").strip() or None,
                parties=parties,
                seed=_whole(visit.form.get("seed", "0")),
                patience_s=float(_whole(visit.form.get("patience", ""))),
            ),
            check=self._limits(draft),
        )
        visit.note("run plan", planned.run)
        return visit.go(f"/runs/one/{quote(planned.run)}", "Planned: no party is asked until you start it.")

    # One run

    def _one(self, visit: Visit) -> Response:
        run = visit.path["run"]
        plan = cache(lambda: self._context.plans.of(run))
        found = cache(lambda: following.live(self._home, run, plan()))

        def standing() -> dict[str, Any]:
            status = runs.status(self._home, run)
            contacts = dict(runs.contacts(self._home, status))
            because = dict(runs.away_because(self._home, status))
            return {"run": run, "status": status, "contacts": contacts, "away_because": because}

        parts: dict[str, Part] = {
            "standing": standing,
            "timeline": lambda: {"events": runs.timeline(self._home, run), "now": time.time()},
            "live": lambda: {
                "live": found(),
                "plan": plan(),
                "caps": _caps(plan()),
                "rate": following.answer_rate,
                "latency": following.mean_latency_s,
                "weights": weights_chart(found()),
                "votes": votes_chart(found()),
                "epsilon": epsilon_chart(found(), plan()),
            },
            "texts": lambda: {"live": found(), "rows": found().texts[:TEXTS_SHOWN]},
            "run_plan": lambda: {"figures": plan().figures, "planned": plan().planned},
            "log": lambda: {"lines": runs.log(self._home, run)},
        }
        return visit.page(f"Run {run}", parts, template="run.html.j2", run=run, **self._context.live(f"run {run}"))

    def _act(self, action: str, visit: Visit) -> str:
        run = visit.path["run"]
        if action == "stop":
            visit.check_typed(run)
        act, words = ACTIONS[action]
        requested = act(self._home, run)
        visit.note(f"run {action}", run)
        condition = "" if requested.served else " This takes effect once the coordinator runs."
        return visit.go(f"/runs/one/{quote(run)}", words + condition)

    # Results

    def _result(self, visit: Visit) -> Response:
        run = visit.path["run"]
        query = {key: visit.query.get(key, "") for key in ("find", "label", "generator")}

        found = cache(lambda: releases.search(self._home, run, **query))
        parts: dict[str, Part] = {
            "verdict": lambda: {"verdict": releases.verdict(self._home, run)},
            "files": lambda: {"files": releases.files(self._home, run), "run": run},
            "corpus": lambda: {
                "found": found(),
                "listed": overview.page(found().texts, visit.page_number),
                "wanted": query,
                "run": run,
            },
            "card": lambda: {"card": releases.read_file(self._home, run, "README.md").decode("utf-8", "replace")},
        }
        return visit.page(f"Result of {run}", parts, run=run)

    def _file(self, visit: Visit) -> Response:
        run, name = visit.path["run"], visit.path["name"]
        data = releases.read_file(self._home, run, name)
        visit.note("export", f"{run}: {name}")
        return download(data, f"{run}-{name}")

    def _report(self, visit: Visit) -> Response:
        """The report as it was published: its own small script runs in a sandbox without origin, cookies or network."""
        data = releases.read_file(self._home, visit.path["run"], "report.html")
        return Response(data, media_type="text/html; charset=utf-8", headers={"content-security-policy": REPORT_POLICY})

    def _compare(self, visit: Visit) -> Response:
        named = visit.request.query_params.getlist("run")[:6]

        def compared() -> dict[str, Any]:
            every = releases.compare(self._home, named, self._context.plans)
            generators = list(dict.fromkeys(name for each in every for name in each.weights))
            quality = list(dict.fromkeys(name for each in every for name in each.quality))
            figures = list(dict.fromkeys(name for each in every if each.evaluated for name in each.evaluated.figures))
            return {"compared": every, "generators": generators, "quality": quality, "figures": figures}

        choices = [run.run for run in self._context.index.runs()[:200]]
        return visit.page(
            "Compare runs", {"compared": compared}, template="compare.html.j2", named=named, choices=choices
        )


def _plan_address(visit: Visit, draft: drafts.Draft) -> str:
    """Address of the page with the draft's plan, for the parties and settings in the form."""
    given = {key: visit.form[key] for key in ("name", "seed", "patience") if key in visit.form}
    asked = {"plan": "yes", "parties": ",".join(visit.lists.get("party", ())), **given}
    return f"/runs/new/{draft.identity}?{urlencode(asked)}"


def _caps(plan: RunPlanFacts) -> dict[str, str]:
    """Each generator's limits in words, for those that have some."""
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


def _band(values: list[float], noise: list[float]) -> dict[str, list[float]]:
    """Lower and upper end of what noise alone may add or take."""
    return {
        "low": [value - NOISE_DEVIATIONS * each for value, each in zip(values, noise, strict=True)],
        "high": [value + NOISE_DEVIATIONS * each for value, each in zip(values, noise, strict=True)],
    }


def weights_chart(live: LiveRun) -> dict[str, Any] | None:
    """Values of the chart of each generator's weight by round, with noise bands if the method reports the noise.

    None before there are two rounds of several generators.
    """
    if len(live.weights) < 2 or len(live.generators) < 2:
        return None
    series: list[dict[str, Any]] = []
    for index, name in enumerate(live.generators):
        values = [row[index] for row in live.weights]
        series.append({"name": name, "unit": "%", "values": values})
        if live.weights_noise:
            rounds = [live.weights_noise.get(number) for number in range(len(values))]
            band = _band(values, [0.0 if noise is None else noise[index] for noise in rounds])
            low, high = ([min(1.0, max(0.0, end)) for end in band[side]] for side in ("low", "high"))
            series[-1] |= {"low": low, "high": high}
    return {"across": "round", "x": list(range(len(live.weights))), "series": series}


def votes_chart(live: LiveRun) -> dict[str, Any] | None:
    """Values of the chart of each generator's fraction of the votes by private sum, with noise bands."""
    voted = [each for each in live.sums if each.vote_fractions]
    if not voted or len(live.generators) < 2:
        return None
    series = []
    for index, name in enumerate(live.generators):
        values = [each.vote_fractions[index] for each in voted]
        band = _band(values, [each.noise[index] for each in voted])
        series.append({"name": name, "unit": "%", "values": values, **band})
    return {"across": "private sum with votes", "x": list(range(1, len(voted) + 1)), "series": series}


def epsilon_chart(live: LiveRun, plan: RunPlanFacts) -> dict[str, Any] | None:
    """Values of the chart of epsilon after each private sum, spent and planned; None if the run is not private."""
    if not plan.epsilon_after:
        return None
    spent = [0.0, *(each.epsilon_after for each in live.sums)]
    planned = [0.0, *plan.epsilon_after]
    return {
        "across": "private sum",
        "x": list(range(len(planned))),
        "series": [
            {"name": "spent", "values": [*spent, *[None] * (len(planned) - len(spent))], "steps": True},
            {"name": "planned", "values": planned, "steps": True, "dash": True, "colour": 9},
        ],
    }
