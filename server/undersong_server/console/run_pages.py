"""The console's screens for runs: list, new run, one run, its result, comparison."""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from fastapi.responses import Response
from markupsafe import Markup

from undersong_common.errors import ConfigurationError, UndersongError
from undersong_common.pages.site import LIVE, Part, Site, Visit, download
from undersong_common.pages.store import WorkUnderWay
from undersong_common.pages.stream import Pulse
from undersong_common.printable import counted, is_number
from undersong_server.defaults import RunOptions
from undersong_server.evaluation.options import EvaluationOptions
from undersong_server.operations import (
    comparison,
    coordinator,
    curation,
    drafts,
    enrolment,
    form,
    form_faults,
    open_points,
    overview,
    permissions,
    releases,
    runs,
    tasks,
    uploads,
)
from undersong_server.operations.runs import RunSummary
from undersong_server.report.html import epsilon_chart, shares_chart
from undersong_server.runs.folder import ENDED, RunStatus

# Shared state of the console's screens: the coordinator's folder, its runs and their plans.

AWAY = "The coordinator is not running: this page is unchanged since it stopped. Start the coordinator to continue."


@dataclass(frozen=True)
class ConsoleContext:
    """The coordinator that a console shows, and the files and keys that the console may use.

    Attributes:
        tasks: folders whose task files are offered, and whose files tasks from the console may name.
        keys: (host, environment variable) of every key that a task from the console may send.
        environment: variables in which generators find their keys, for a test call.
        public_cache: file with embeddings of public texts.
        work: the long actions that the console carries out now.
    """

    home: Path
    tasks: tuple[Path, ...] = ()
    keys: tuple[tuple[str, str], ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    public_cache: Path = Path("public-embeddings.sqlite")
    work: WorkUnderWay = field(default_factory=WorkUnderWay, repr=False)

    def list_runs(self, visit: Visit) -> list[RunSummary]:
        """Returns every run, newest first; all parts of a screen share one list."""
        request_state = visit.request.state
        if not hasattr(request_state, "runs"):
            request_state.runs = overview.list_runs(self.home)
        listed: list[RunSummary] = request_state.runs
        return listed

    def compared_names(self, visit: Visit) -> tuple[list[str], str]:
        """The runs that the address names, at most six, the oldest first, and the figure to sort them by."""
        run_names = visit.request.query_params.getlist("run")[:6]
        newest_first = {run.run: place for place, run in enumerate(self.list_runs(visit))}
        oldest_first = sorted(run_names, key=lambda name: -newest_first.get(name, -1))
        return oldest_first, visit.query.get("sort", "")

    def compare_runs(self, visit: Visit) -> comparison.RunComparison:
        """Compares the runs that the address names; all parts of a screen share one comparison.

        Raises ConfigurationError for an unknown run or figure.
        """
        request_state = visit.request.state
        if not hasattr(request_state, "comparison"):
            run_names, sort = self.compared_names(visit)
            request_state.comparison = comparison.compare(self.home, run_names, sort=sort)
        compared: comparison.RunComparison = request_state.comparison
        return compared

    def pulse(self, topic: str) -> Pulse:
        """Version that changes with the state of the coordinator, of a run, or of a run's result.

        Args:
            topic: "all", "run NAME" or "result NAME"; a result's version does not depend on whether a coordinator runs.
        """
        kind, _, run = topic.partition(" ")
        is_served = kind == "result" or coordinator.is_served(self.home)
        marks: list[Any] = [is_served]
        if run:
            marks += [runs.mark(self.home, run), self.work.since(_evaluation_of(run))]
        else:
            marks.append([(run.run, run.status.words) for run in overview.list_runs(self.home)])
            marks.append(coordinator.mark(self.home))
        version = hashlib.sha256(json.dumps(marks, default=str).encode()).hexdigest()[:16]
        return Pulse(version, "" if is_served else AWAY)

    def live(self, topic: str) -> dict[str, Any]:
        """Returns the variables of a screen that renews itself when the :meth:`pulse` of ``topic`` changes."""
        return {"topic": topic, "pulse": self.pulse(topic).version}


ARCHIVE = "archive"  # choice beside the states: the runs that were put away
STATES = (
    "planned",
    "waiting",
    "running",
    "paused",
    "stopped",
    "finished",
    "failed",
    overview.REJECTED,
    "unreadable",
    ARCHIVE,
)
ACTIONS: Mapping[str, tuple[Callable[[Path, str], runs.ActionRequest | None], str]] = {
    "start": (
        partial(runs.request, action="run"),
        "Started: the run is prepared first, which may take minutes; then the hospitals are asked to approve.",
    ),
    "pause": (partial(runs.request, action="pause"), "The run pauses at its next step; nothing is lost."),
    "resume": (partial(runs.request, action="run"), "Asked to go on: the coordinator tries it within seconds."),
    "stop": (partial(runs.request, action="stop"), "The run ends for good at its next step."),
    "put-away": (runs.put_away, "Put away: Home does not list it any more; it is in the archive of Runs."),
    "take-back": (runs.take_back, "Taken out of the archive."),
}
TEXTS_SHOWN = 12  # latest texts on the screen of a run
WITHOUT_ASIDE = ", without set-aside.jsonl"  # ends an audit entry of an archive
SEARCHED = ("find", "label", "generator", "marked")  # fields of the search in a corpus
ASIDE: releases.Texts = "aside"  # in the field "marked": the texts that were set aside, which are no part of the corpus
REPORT_POLICY = "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"


class RunScreens:
    """Screens for runs: list, new run, one run, its result, comparison. Mounts its routes on ``site``."""

    def __init__(self, site: Site, context: ConsoleContext) -> None:
        self._context = context
        self._home = context.home
        run_path = "/runs/one/{run}"
        site.routes(
            {
                "/runs": self._list,
                run_path: self._one,
                f"{run_path}/result": self._result,
                f"{run_path}/file/{{name}}": self._file,
                f"{run_path}/report": self._report,
                f"{run_path}/archive.zip": self._archive,
                f"{run_path}/without-marked.zip": self._archive_without_marked,
                "/compare": self._compare,
                "/compare/figures.csv": self._compare_csv,
            }
        )
        site.routes(
            {
                "/runs/new": self._sources,
                "/runs/new/{draft}": self._form,
                "/runs/new/{draft}/task.toml": self._task_file,
            },
            {
                "/runs/new": self._draft,
                "/runs/new/{draft}": self._change,
                f"/runs/new/{{draft}}{LIVE}": self._live,
                **{f"{run_path}/{action}": partial(self._act, action) for action in ACTIONS},
                f"{run_path}/result": self._evaluate,
                f"{run_path}/note": self._describe,
                f"{run_path}/marks": self._mark,
            },
            least="operator",
        )

    # These methods serve the lists and the forms of new runs.

    def _list(self, visit: Visit) -> Response:
        find, wanted_state, tag = (visit.query.get(key, "").strip() for key in ("find", "state", "tag"))
        is_archive = wanted_state == ARCHIVE

        def read_list() -> dict[str, Any]:
            all_runs = self._context.list_runs(visit)
            fitting_runs = overview.listed_runs(
                all_runs, find=find, state="" if is_archive else wanted_state, tag=tag, archive=is_archive
            )
            tags = sorted({name for run in all_runs for name in run.tags}, key=str.casefold)
            filters = {"find": find, "state": wanted_state, "states": STATES, "tag": tag, "tags": tags}
            archived_runs = [] if is_archive else overview.listed_runs(all_runs, find=find, tag=tag, archive=True)
            return {**visit.listed(fitting_runs), **filters, "any": bool(all_runs), "in_archive": len(archived_runs)}

        return visit.page("Runs", {"runs": read_list}, **self._context.live("all"))

    def _sources(self, visit: Visit) -> Response:
        return visit.show(
            "sources.html.j2",
            "New run",
            templates=form.templates(),
            files=permissions.offered(self._context.tasks),
            example=drafts.example_task(),
            earlier=overview.listed_runs(self._context.list_runs(visit))[:50],
            unfinished=drafts.unfinished(self._home),
        )

    def _draft(self, visit: Visit) -> str:
        uploaded_bytes = visit.files.get("task", b"")
        kind, _, source = visit.form.get("source", "").partition(" ")
        if uploaded_bytes:
            draft = drafts.from_bytes(self._home, "the uploaded file", uploaded_bytes, self._context.tasks)
        elif kind == "file":
            path = {str(path): path for path in permissions.offered(self._context.tasks)}.get(source)
            if path is None:
                raise ConfigurationError("this task file is not offered", "choose one of the list")
            draft = drafts.from_file(self._home, path)
        elif kind in ("run", "revise"):
            draft = drafts.from_run(self._home, source, revises=kind == "revise")
        elif kind == "example":
            draft = drafts.from_example(self._home)
        elif kind == "template":
            draft = drafts.from_template(self._home, source, self._context.tasks)
        else:
            raise ConfigurationError("no start of the new run was chosen", "choose a template, or upload a task file")
        return visit.go(f"/runs/new/{draft.identity}")

    def _form(self, visit: Visit) -> Response:
        draft = drafts.find(self._home, visit.path["draft"])
        folders = drafts.task_folders(self._home, self._context.tasks)
        offered_files = permissions.files(draft, folders)
        test_files = permissions.files_of_tests(folders)
        return visit.show(
            "draft.html.j2",
            "New run",
            **self._so_far(draft, checked="checked" in visit.query),
            enrolled=enrolment.enrolled(self._home),
            missing_hospitals=enrolment.missing_words(self._home),
            files=offered_files,
            file_words={name: permissions.file_words(Path(draft.folder) / name, test_files) for name in offered_files},
            uploads=uploads.uploads_folder(self._home),
            kinds=form.generator_kinds(),
            field_words=form.field_words(),
            trial_texts=tasks.TEXTS,
            is_checked="checked" in visit.query,
            is_example=draft.source == drafts.EXAMPLE,
            refusal=self._refusal(str(draft.data["task"].get("revises", ""))),
        )

    def _refusal(self, run: str) -> str:
        """The reason why a run that is revised has failed; "" if it has not."""
        error = runs.status(self._home, run).error if run else None
        if error is None:
            return ""
        return error.screen_words

    def _live(self, visit: Visit) -> Response:
        return visit.part("so_far", live=True, **self._so_far(self._typed(visit), checked=False))

    def _so_far(self, draft: drafts.Draft, *, checked: bool) -> dict[str, Any]:
        """The draft's plan, and its faults beside their fields.

        Args:
            checked: shows the faults of empty fields, too.
        """
        planned_run, fault_by_path = None, {**draft.missing, **draft.contact_faults}
        general_faults: list[str] = []
        try:
            planned_run = runs.preview(
                self._home, draft.data, Path(draft.folder), draft.parties, check=self._limits(draft)
            )
        except ConfigurationError as error:
            if error.code != "no-generator":  # The form has a sentence of its own for that, beside its button.
                fault_by_path |= error.places or {"": f"{error.problem}; {error.remedy}"}
        sections = draft.sections
        fields = {field.path: field for section in sections for field in section.fields}
        faults_by_field: dict[str, list[str]] = {}
        todo: list[str] = []  # paths of empty fields
        for place, words in fault_by_path.items():
            fault_paths = form_faults.fault_places(sections, place, words)
            if not fault_paths:
                general_faults.append(form_faults.form_words(sections, words))
            elif len(fault_paths) == 1 and fault_paths[0] in fields and not fields[fault_paths[0]].text:
                todo.append(fault_paths[0])
            for field_path in fault_paths:
                if checked or field_path not in todo:
                    faults_by_field.setdefault(field_path, []).append(form_faults.form_words(sections, words))
        in_form = {path: place for place, path in enumerate(fields)}
        return {
            "draft": draft,
            "planned": planned_run,
            "beside": {path: faults_by_field[path] for path in _by_place(faults_by_field, in_form)},
            "todo": _by_place(todo, in_form),
            "general": general_faults,
            "warnings": permissions.test_file_warnings(draft, self._context.tasks),
            "other_labels": self._limits(draft).other_labels(),
            "words": {form_faults.PARTIES: "Hospitals"}
            | {section.path: section.title.capitalize() for section in sections}
            | {
                field.path: field.words + (f" ({section.fields[0].text})" if section.kind else "")
                for section in sections
                for field in section.fields
            },
            "caps": _caps(draft.data),
        }

    def _limits(self, draft: drafts.Draft) -> permissions.FilePermissions:
        return permissions.FilePermissions(self._home, draft, self._context.tasks, self._context.keys)

    def _typed(self, visit: Visit) -> drafts.Draft:
        """Saves the draft with the values of the form, and returns it."""
        return drafts.save(self._home, drafts.fill(drafts.find(self._home, visit.path["draft"]), visit.lists))

    def _change(self, visit: Visit) -> str:
        """Keeps what was typed, and does what the form's button says."""
        draft = self._typed(visit)
        draft_address = f"/runs/new/{draft.identity}"
        act, _, place = visit.form.get("do", "check").partition(" ")
        section, _, table_number_words = place.partition(".")
        address_end = "?checked=yes"
        if act == "plan":
            return self._plan(visit, draft, draft_address)
        if act == "discard":
            drafts.discard(self._home, draft)
            return visit.go("/runs/new", "The draft is removed.")
        if act == "add":
            draft = drafts.add_table(draft, section, visit.form.get("kind", ""))
            address_end = f"#{section}-{len(draft.data[section]) - 1}"
        elif act == "example":
            draft = drafts.add_example_generators(self._home, draft)
            address_end = f"#generators-{len(draft.data['generators']) - 1}"
        elif act == "remove":
            draft = drafts.remove_table(draft, section, _parse_whole(table_number_words))
            address_end = "#generators" if section == "generators" else "#further"
        elif act == "try":
            surroundings = {"environment": self._context.environment, "public_cache": self._context.public_cache}
            with self._context.work.only(f"the trial of a generator for {draft.identity}"):
                draft = drafts.try_generator(
                    draft, _parse_whole(table_number_words), self._limits(draft), **surroundings
                )
            visit.note("generator test", str(draft.trial["generator"]))
            address_end = "#trial"
        elif act == "upload":
            upload_key = f"file {place}"
            file_name, content = visit.file_names.get(upload_key, ""), visit.files.get(upload_key, b"")
            draft = drafts.name_upload(self._home, draft, place, file_name, content)
            file_name, _ = uploads.table_name(file_name)
            visit.note("upload", f"{file_name}, {form.change_words(form.counted_from_one(place))}")
            address_end = f"#key-{place.replace('.', '-')}"
        elif act == "labels":
            draft = self._with_file_labels(draft, place)
            address_end = "#label-1"
        elif act == "rows":
            sent_row_count = len(visit.lists.get("label", ()))
            address_end = f"#label-{1 + sum(any(row) for row in draft.label_rows)}"
            lacking_row_count = sent_row_count + drafts.FEWEST_EMPTY_ROWS - len(draft.label_rows)
            draft = replace(draft, more_rows=draft.more_rows + max(0, lacking_row_count))
        drafts.save(self._home, draft)
        return visit.go(f"{draft_address}{address_end}")

    def _with_file_labels(self, draft: drafts.Draft, key: str) -> drafts.Draft:
        """The draft with the labels of the file that ``key`` names."""
        for difference in self._limits(draft).other_labels():
            if difference.file.key == key and difference.can_be_used:
                return drafts.use_labels(draft, difference.labels)
        raise ConfigurationError(
            f"the file of {key} has no other labels now",
            "open the form again, and compare the labels",
            code="no-labels",
        )

    def _plan(self, visit: Visit, draft: drafts.Draft, draft_address: str) -> str:
        form_state = self._so_far(draft, checked=True)
        if form_state["beside"] or form_state["general"]:
            refusal_words = "some fields need another look." if form_state["beside"] else "the plan below says why."
            if not enrolment.enrolled(self._home):
                refusal_words = f"nobody is enrolled. {enrolment.missing_words(self._home)}"
            return visit.go(f"{draft_address}?checked=yes", f"No run is planned yet: {refusal_words}", "warn")
        options = RunOptions(
            name=draft.name or None,
            parties=draft.parties,
            seed=_parse_whole(draft.seed),
            patience_s=float(_parse_whole(draft.patience)),
        )
        with self._context.work.only(f"the planning of {draft.name or f'draft {draft.identity}'}"):
            # It raises if the draft is gone because somebody has planned it meanwhile.
            drafts.find(self._home, draft.identity)
            planned_run = runs.plan_task(
                self._home,
                draft.data,
                Path(draft.folder),
                options,
                check=self._limits(draft),
                begun_with=draft.begun_with,
            )
            drafts.discard(self._home, draft)
        visit.note("run plan", planned_run.run)
        return visit.go(f"/runs/one/{quote(planned_run.run)}", "Planned: no hospital is asked until you start it.")

    def _task_file(self, visit: Visit) -> Response:
        draft = drafts.find(self._home, visit.path["draft"])
        return download(draft.toml.encode(), f"{draft.data['task'].get('name', 'task')}.toml", "application/toml")

    # These methods serve the screen of one run.

    def _one(self, visit: Visit) -> Response:
        run = visit.path["run"]
        read_plan = cache(lambda: overview.run_plan(self._home, run))
        read_live = cache(lambda: overview.live(self._home, run, read_plan()))

        def read_standing() -> dict[str, Any]:
            status = runs.status(self._home, run)
            put_away = runs.is_put_away(self._home, run)
            awaited, revision = runs.awaited(self._home, status), runs.revision(self._home, run)
            standing = {"run": run, "status": status, "awaited": awaited, "put_away": put_away, "revision": revision}
            other_words = status.error.others(runs.roster_of(self._home, run)) if status.error else ""
            is_rejected = status.error is not None and bool(status.error.rejected_by)
            standing["promise"] = runs.requested_promise(self._home, run) if is_rejected else ""
            standing["labels"] = runs.labels_of(self._home, run)
            standing["evaluation_error"] = runs.evaluation_error(self._home, run, status)
            contacts = {name: facts.party.contact for name, facts in awaited.items()}
            standing["remedy"] = status.error.advise(contacts) if status.error else ""
            standing["change_line"] = form.change_line
            return {**standing, "may_resume": runs.may_resume(self._home, status), "others": other_words}

        parts: dict[str, Part] = {
            "standing": read_standing,
            "notes": lambda: {"run": run, "annotations": curation.show(self._home, run)},
            "timeline": lambda: {"events": runs.timeline(self._home, run, read_plan().titles)},
            "live": lambda: {
                "live": read_live(),
                **_phase(runs.status(self._home, run)),
                "plan": read_plan(),
                "caps": _caps(read_plan().planned.task),
                "rate": overview.answer_rate,
                "latency": overview.mean_latency_s,
                **_charts(read_live(), read_plan()),
            },
            "texts": lambda: {"live": read_live(), "rows": read_live().texts[:TEXTS_SHOWN]},
            "run_plan": lambda: {"figures": read_plan().figures, "planned": read_plan().planned},
            "log": lambda: {"lines": runs.timed_log(self._home, run)},
        }
        return visit.page(f"Run {run}", parts, template="run.html.j2", run=run, **self._context.live(f"run {run}"))

    def _act(self, action: str, visit: Visit) -> str:
        run = visit.path["run"]
        if action == "stop":
            visit.check_typed(run)
        carry_out, words = ACTIONS[action]
        action_request = carry_out(self._home, run)
        visit.note(f"run {action}", run)
        address = "/" if action == "put-away" else f"/runs/one/{quote(run)}"
        if action_request is None or action_request.served:
            return visit.go(address, words)
        return visit.go(address, f"{words} This takes effect once the coordinator runs.", "warn")

    def _describe(self, visit: Visit) -> str:
        run = visit.path["run"]
        tags = visit.form.get("tags", "").split(",")
        curation.describe(self._home, run, note=visit.form.get("note", ""), tags=tags)
        visit.note("run note", run)
        return visit.go(f"/runs/one/{quote(run)}", "Saved.")

    # These methods serve the screens of results.

    def _result(self, visit: Visit) -> Response:
        run = visit.path["run"]
        query = {key: visit.query.get(key, "") for key in SEARCHED}

        search_corpus = cache(lambda: self._search(run, query))
        list_files = cache(lambda: releases.files(self._home, run))
        parts: dict[str, Part] = {
            "evaluation": lambda: self._evaluation(run),
            "verdict": lambda: {"verdict": releases.verdict(self._home, run)},
            "files": lambda: {
                "files": list_files(),
                "marks": releases.count_marks(self._home, run),
                "lacking": [name for name in list_files() if name in releases.LEFT_OUT_NAMES],
                "downloaded_at": curation.show(self._home, run).downloaded_at,
                "bar": open_points.bar_to_publication(self._home, run),
                "run": run,
            },
            "corpus": lambda: {
                "remainder": comparison.corpus_remainder(self._home, run, search_corpus()),
                **visit.listed(list(zip(search_corpus().numbers, search_corpus().texts, strict=True))),
                "found": search_corpus(),
                "most_texts": overview.run_plan(self._home, run).figures.published,
                "wanted": query,
                "is_asked": bool(visit.query.keys() & {*SEARCHED, "page"}),
                "run": run,
            },
        }
        return visit.page(f"Result of {run}", parts, run=run, **self._context.live(f"result {run}"))

    def _search(self, run: str, query: Mapping[str, str]) -> releases.Found:
        words = {key: query.get(key, "") for key in ("find", "label", "generator")}
        marked_choice = query.get("marked", "")
        texts: releases.Texts = "marked" if marked_choice else ""
        for choice in (ASIDE, releases.MISMATCHED, releases.WITH_PHRASE):
            if marked_choice == choice:
                texts = choice
        return releases.search(self._home, run, **words, texts=texts)

    def _mark(self, visit: Visit) -> str:
        """Marks one text, or all that the form's search finds; leads back to where the person was."""
        run, row_number_words = visit.path["run"], visit.form.get("row", "")
        is_marked = visit.form.get("mark", "yes") == "yes"
        query = {key: visit.form[key] for key in (*SEARCHED, "page") if visit.form.get(key)}
        if query.get("marked") == ASIDE:
            raise ConfigurationError("texts that were set aside have no marks", "leave their file out of the archive")
        row_numbers = (_parse_whole(row_number_words),) if row_number_words else self._search(run, query).numbers
        curation.mark_texts(self._home, run, row_numbers, marked=is_marked)
        visit.note("run mark" if is_marked else "run unmark", f"{run}: {counted(len(row_numbers), 'text')}")
        anchor = f"text-{row_number_words}" if row_number_words else "corpus"
        return visit.go(f"/runs/one/{quote(run)}/result?{urlencode(query)}#{anchor}")

    def _evaluation(self, run: str) -> dict[str, Any]:
        releases.files(self._home, run)  # It raises for a run that has not finished, which has no result.
        quality_figures = comparison.how_good(self._home, run)
        files = {path: permissions.file_words(path) for path in self._test_files()}
        leading = comparison.leading_figure(quality_figures)
        judgement = comparison.judge(self._home, run)
        points = open_points.open_points(self._home, run, judgement)
        status = runs.status(self._home, run)
        return {
            "figures": quality_figures,
            "leading": leading,
            "tiles": comparison.shown_scores(quality_figures, leading),
            "scores": comparison.named_scores(self._home, run, quality_figures),
            "open_points": points,
            "publish": open_points.publish_answer(self._home, run, judgement, points),
            "meaning": comparison.leading_meaning(self._home, run, leading),
            "evaluation_error": runs.evaluation_error(self._home, run, status),
            "failed_at": status.at,
            "judgement": judgement,
            "explained": comparison.explain_figures(self._home, run),
            "own_evaluation": releases.own_evaluation(self._home, run),
            "evaluations_beside": comparison.beside_figures(self._home, run),
            "run": run,
            "files": files,
            "since": self._context.work.since(_evaluation_of(run)),
        }

    def _test_files(self) -> list[Path]:
        """The files that an evaluation may read: those of the operator's folders and of the console's uploads."""
        return permissions.public_files(drafts.task_folders(self._home, self._context.tasks))

    def _evaluate(self, visit: Visit) -> str:
        run, file_name = visit.path["run"], visit.form.get("file", "")
        names = {key: visit.form.get(key, "").strip() for key in ("text_field", "label_field")}
        options = EvaluationOptions(text_field=names["text_field"] or "text", label_field=names["label_field"] or None)
        path = {str(path): path for path in self._test_files()}.get(file_name)
        uploaded_bytes = visit.files.get("test", b"")
        if path is None and not uploaded_bytes:
            raise ConfigurationError("no test file was chosen", "choose one of the list, or upload one")
        with self._context.work.only(_evaluation_of(run)):
            if uploaded_bytes:
                evaluation = releases.evaluate_uploaded(
                    self._home, run, uploaded_bytes, visit.file_names["test"], options
                )
            else:
                evaluation = releases.evaluate_run(self._home, run, replace(options, test=path))
        visit.note("run evaluate", f"{run}: {evaluation.test}")
        place_words = releases.evaluation_place(self._home, run, evaluation)
        return visit.go(f"/runs/one/{quote(run)}/result#evaluation", place_words)

    def _file(self, visit: Visit) -> Response:
        run, name = visit.path["run"], visit.path["name"]
        data = releases.read_file(self._home, run, name)
        if name in releases.CORPUS_NAMES:
            self._note_download(visit, f"{run}: {name}")
        else:
            visit.note("export", f"{run}: {name}")
        return download(data, f"{run}-{name}")

    def _note_download(self, visit: Visit, about: str) -> None:
        """Notes an export of texts in the audit log; only an operator's is the download that the next step asks for."""
        visit.note("export", about)
        if visit.person.may("operator"):
            curation.note_download(self._home, visit.path["run"])

    def _archive(self, visit: Visit) -> Response:
        run = visit.path["run"]
        without_aside = _leaves_aside_out(visit)
        zip_bytes = releases.archive(self._home, run, without_aside=without_aside)
        self._note_download(visit, f"{run}: everything{WITHOUT_ASIDE if without_aside else ''}")
        return download(zip_bytes, f"{run}.zip", "application/zip")

    def _archive_without_marked(self, visit: Visit) -> Response:
        run = visit.path["run"]
        without_aside = _leaves_aside_out(visit)
        zip_bytes = releases.archive_without_marked(self._home, run, without_aside=without_aside)
        about = f"{run}: everything without the marked texts{WITHOUT_ASIDE if without_aside else ''}"
        self._note_download(visit, about)
        return download(zip_bytes, f"{run}-without-marked.zip", "application/zip")

    def _report(self, visit: Visit) -> Response:
        """The report as it was published: its own small script runs in a sandbox without origin, cookies or network."""
        data = releases.read_file(self._home, visit.path["run"], "report.html")
        return Response(data, media_type="text/html; charset=utf-8", headers={"content-security-policy": REPORT_POLICY})

    def _compare(self, visit: Visit) -> Response:
        run_names, sort = self._context.compared_names(visit)
        listed_names = [run.run for run in overview.listed_runs(self._context.list_runs(visit))[:200]]
        if sort:  # The screen numbers the runs in their sorted order.
            with contextlib.suppress(UndersongError):  # The part tells of a run or figure that is unknown.
                run_names = [run.run for run in self._context.compare_runs(visit).runs]
        choices = [*run_names, *(name for name in listed_names if name not in run_names)]
        return visit.page(
            "Compare runs",
            {"compared": lambda: {"found": self._context.compare_runs(visit), "named": run_names}},
            template="compare.html.j2",
            named=run_names,
            choices=choices,
            **self._context.live("all"),
        )

    def _compare_csv(self, visit: Visit) -> Response:
        run_names, _ = self._context.compared_names(visit)
        visit.note("export", f"comparison of {', '.join(run_names)}")
        return download(self._context.compare_runs(visit).csv(), "compared-runs.csv", "text/csv")


def _by_place(paths: Iterable[str], positions: Mapping[str, int]) -> list[str]:
    """Returns paths of a form's fields and sections in the form's order, then those that are not in the form."""
    return sorted(dict.fromkeys(paths), key=lambda path: positions.get(path, len(positions)))


def _evaluation_of(run: str) -> str:
    """The subject of the work that evaluates a run."""
    return f"the evaluation of {run}"


def _phase(status: RunStatus) -> dict[str, Any]:
    """Variables on what a run does now; ``is_writing`` is True between phases too, when the next is not known."""
    is_open = status.state not in ENDED
    is_writing = is_open and (not status.phase or status.phase.startswith("writing"))
    return {"status": status, "is_open": is_open, "is_writing": is_writing}


def _caps(task: Mapping[str, Any]) -> dict[str, str]:
    """Each generator's limits in words, for those that have some."""
    unit_words = {"price_budget_usd": "US$ {:g}", "token_budget": "{:,} tokens"}
    limits = {
        str(table.get("name")): [
            words.format(table[key]) for key, words in unit_words.items() if isinstance(table.get(key), int | float)
        ]
        for table in task.get("generators", ())
    }
    return {name: ", ".join(limit_words) for name, limit_words in limits.items() if limit_words}


def _leaves_aside_out(visit: Visit) -> bool:
    """True if an archive is to lack the file set-aside.jsonl."""
    return bool(visit.query.get("without_aside"))


def _parse_whole(text: str) -> int:
    if not is_number(text.strip()):
        raise ConfigurationError(f"{text!r} is not a whole number", "write for example 120")
    return int(text)


def _charts(live: overview.LiveRun, plan: overview.RunPlanFacts) -> dict[str, Markup]:
    """Weights of the generators, their shares of the votes, and epsilon; "" for what a run does not have."""
    noise = [live.weights_noise.get(round_number, ()) for round_number in range(len(live.weights))]
    sums_with_votes = [opened_sum for opened_sum in live.sums if opened_sum.vote_fractions]
    fractions, deviations = (
        [opened_sum.vote_fractions for opened_sum in sums_with_votes],
        [opened_sum.noise for opened_sum in sums_with_votes],
    )
    weights_chart = shares_chart("Weights", "round", live.generators, live.weights, noise, first_number=1)
    votes_chart = shares_chart("Votes", "sum with votes", live.generators, fractions, deviations, first_number=1)
    spent = [opened_sum.epsilon_after for opened_sum in live.sums if opened_sum.epsilon_after is not None]
    epsilon = epsilon_chart(spent, plan.figures.privacy.epsilon, plan.epsilon_after)
    return {"weights": weights_chart, "votes": votes_chart, "epsilon": epsilon}
