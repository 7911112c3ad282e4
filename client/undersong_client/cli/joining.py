"""``undersong-party enroll`` and ``undersong-party join``: from an installed program to a request for the operator."""

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from undersong_client import operations
from undersong_client.cli import data, rules
from undersong_client.cli.options import HomeFolder, home_of, print_result
from undersong_client.home import PartyHome, read_grant, read_input
from undersong_common.errors import ConfigurationError
from undersong_common.files import replace_file
from undersong_common.program.options import AsJson, Output, with_options

Fingerprint = Annotated[
    str | None, typer.Option("--fingerprint", help="The coordinator's fingerprint, as told by telephone or on paper.")
]
RequestOut = Annotated[
    Path | None, typer.Option("--request-out", help="Where the request goes (default NAME.request.json).")
]


def mount(app: typer.Typer) -> None:
    """Adds the commands to ``undersong-party``."""
    app.command()(enroll)
    app.command()(join)


@with_options()
def enroll(
    output: Output,
    package: Annotated[Path | None, typer.Argument(metavar="[PACKAGE]", help="The operator's package.")] = None,
    fingerprint: Fingerprint = None,
    request: RequestOut = None,
    grant: Annotated[Path | None, typer.Option(help="The operator's answer: puts the certificate to use.")] = None,
    renew: Annotated[bool, typer.Option("--renew", help="Makes a request for a new certificate.")] = False,
    home: HomeFolder = None,
) -> None:
    """Joins a coordinator: package in, request out; makes the party's folder where there is none. Sends nothing.

    The operator's answer is put to use by `run --grant FILE`, or by `enroll --grant FILE` before a service starts.
    """
    folder = home_of(home)
    if sum(is_stated for is_stated in (package is not None, grant is not None, renew)) != 1:
        raise ConfigurationError(
            "enroll takes exactly one of PACKAGE, --grant and --renew", "name a PACKAGE, or --grant FILE, or --renew"
        )
    if grant is not None:
        installed_grant = operations.joining.install(folder, read_grant(grant))
        print_result(
            output.as_json,
            {"party": PartyHome(folder).settings.party, "certificate_until": installed_grant.until.isoformat()},
            f"{installed_grant.words} and renews itself while the daemon runs",
            "next: undersong-party check",
            quiet="" if output.quiet else None,
        )
        return
    new_folder_lines: list[str] = []
    if package is None:
        made_request = operations.joining.renew(folder)
    else:
        made_request, new_folder_lines = _accept(folder, read_input(package), fingerprint)
    request_path = request or Path(f"{made_request.party}.request.json")
    replace_file(request_path, made_request.data)
    print_result(
        output.as_json,
        {"request": str(request_path), "fingerprint": made_request.fingerprint},
        *new_folder_lines,
        *_request_lines(request_path, made_request.fingerprint),
        quiet=made_request.fingerprint if output.quiet else None,
    )


def _request_lines(target: Path, fingerprint: str) -> list[str]:
    return [
        f"wrote {target}: hand it to the operator (it holds no secret)",
        f"the operator compares this party's fingerprint: {fingerprint}",
        "next, with the operator's answer: undersong-party run --grant FILE",
    ]


def _ask_fingerprint(coordinator: str) -> str:
    # The fingerprint in the package is not shown. Otherwise people would copy it and compare nothing.
    if not sys.stdin.isatty():
        raise ConfigurationError(
            "the coordinator's fingerprint must be compared, and none was stated",
            "ask the operator for the fingerprint, and pass it by --fingerprint",
        )
    return str(typer.prompt(f"fingerprint of {coordinator}, as the operator told it by telephone or on paper"))


def _options_of(command: Callable[..., Any], *left_out: str) -> dict[str, inspect.Parameter]:
    """Returns the options of another command, without those named ``left_out``, by the names of its parameters."""
    parameters = inspect.signature(command).parameters
    return {
        option_name: parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for option_name, parameter in parameters.items()
        if option_name not in {"home", "as_json", *left_out}
    }


# The options left out are for a later version of the data set, or for the other steps of `join`.
_DATA_OPTIONS = _options_of(
    data.add,
    *("file", "dry_run", "new_version", "abandon_runs", "restore_ledger", "charge_missing", "receipts", "no_exclude"),
    *("epsilon", "delta", "per_run", "questions"),
)
_BUDGET_OPTIONS = _options_of(rules.set_budget)
_POLICY_OPTIONS = _options_of(rules.set_policy)
# Columns are asked for at a terminal, with these answers where nothing is typed.
_COLUMN_QUESTIONS = {
    "text_field": ("the column with the texts", "text"),
    "label_field": ("the column with the labels (nothing: none)", ""),
    "user_field": ("the column with the patients' numbers (nothing: none)", ""),
}
_QUESTIONS = "kinds of questions, among counts, nearest, classifiers, directions, teachers, or all"


def _number(words: str) -> float:
    try:
        return float(words)
    except ValueError:
        raise ConfigurationError(f"the epsilon {words!r} is not a number", "write for example 4") from None


# By option, the function that reads a typed answer.
_ANSWER_READERS: Mapping[str, Callable[[str], Any]] = {
    "file": Path,
    "epsilon": _number,
    "questions": lambda words: words.replace(",", " ").split(),
}


def join(package: Path, fingerprint: str | None, file: Path | None, request: Path | None, **options: Any) -> None:
    """Joins a coordinator, adds the data set, and sets budget and questions: all before `run`. Sends nothing.

    It asks at a terminal for what no option states. Typed again, it goes on with the first step that is not done.
    """
    folder = home_of(options["home"])
    as_json = bool(options["as_json"])
    package_bytes = read_input(package)
    open_steps = operations.joining.steps_left(folder, package_bytes)
    completed_options = _ask_missing_options(open_steps, {**options, "fingerprint": fingerprint, "file": file})
    # Standard output must hold nothing but the object of --json. The lines of the steps are for the person beside it.
    step_stream = sys.stdout
    if as_json:
        step_stream = sys.stderr
    with redirect_stdout(step_stream):
        if "coordinator" in open_steps:
            _, new_folder_lines = _accept(folder, package_bytes, completed_options["fingerprint"])
            for line in new_folder_lines:
                print(line)
        request_path = _write_request(folder, package_bytes, request)
        _set_up(folder, open_steps, completed_options)
    own_fingerprint = operations.joining.own_fingerprint(PartyHome(folder))
    request_name = None
    next_lines = ["next: undersong-party run"]
    if request_path is not None:
        request_name = str(request_path)
        next_lines = _request_lines(request_path, own_fingerprint)
    print_result(
        as_json,
        {
            "party": PartyHome(folder).settings.party,
            "fingerprint": own_fingerprint,
            "request": request_name,
            "steps": dict.fromkeys(operations.joining.STEPS, "before") | dict.fromkeys(open_steps, "now"),
        },
        *next_lines,
    )


def _ask_missing_options(steps: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options, after asking at a terminal for those that the steps need and that are missing.

    Raises ConfigurationError that names all of these if nobody sits at a terminal.
    """
    step_needs = (
        ("coordinator", ("fingerprint",), "the fingerprint was not compared", "--fingerprint WORDS", ""),
        ("data", ("file",), "no file with the notes is named", "--data FILE", "file or folder with the notes"),
        ("budget", ("epsilon",), "no budget is stated", "--epsilon NUMBER", "epsilon of all runs together"),
        ("questions", ("questions", "named_statistics"), "no question is allowed", "--question KIND", _QUESTIONS),
    )
    missing_needs = [
        step_need
        for step_need in step_needs
        if step_need[0] in steps and not any(options[option_name] for option_name in step_need[1])
    ]
    option_values = dict(options)
    if not sys.stdin.isatty():
        ConfigurationError.raise_together(
            [(problem, f"pass {flag}") for _, _, problem, flag, _ in missing_needs], code="not-stated"
        )
        return {
            **option_values,
            **{
                option_name: option_values[option_name] or default_value
                for option_name, (_, default_value) in _COLUMN_QUESTIONS.items()
            },
        }
    for _, (name, *_), _, _, question in missing_needs:
        if question:
            option_values[name] = _ANSWER_READERS.get(name, str)(typer.prompt(question))
    if "data" in steps:
        for name, (question, default) in _COLUMN_QUESTIONS.items():
            if option_values[name] is None:
                option_values[name] = typer.prompt(question, default=default, show_default=bool(default))
    return option_values


def _accept(
    folder: Path, package: bytes, fingerprint: str | None
) -> "tuple[operations.joining.MadeRequest, list[str]]":
    """Trusts the package's coordinator; makes the party's folder if there is none, and returns lines about that."""
    from undersong_client.consent.people import person_of_terminal

    person = None
    new_folder_lines = [f"made {folder}; {operations.joining.BACKUP}"]
    if (folder / "settings.json").exists():
        person = person_of_terminal(PartyHome(folder))
        new_folder_lines = []
    made_request = operations.joining.accept(
        folder, package, lambda name: fingerprint or _ask_fingerprint(name), person=person
    )
    return made_request, new_folder_lines


def _write_request(folder: Path, package: bytes, request: Path | None) -> Path | None:
    """Writes the request and returns its path; None if the party is enrolled already. An existing request stays."""
    from undersong_client import keys

    party_home = PartyHome(folder)
    if keys.is_enrolled(party_home):
        return None
    request_path = request or Path(f"{party_home.settings.party}.request.json")
    # A request has a key of its own: a second one would make the operator's answer to the first worthless.
    if not request_path.exists():
        replace_file(request_path, operations.joining.request(folder, package).data)
    return request_path


def _set_up(folder: Path, steps: Sequence[str], option_values: Mapping[str, Any]) -> None:
    """Adds the data set, and sets budget and policy, as far as ``steps`` names them."""

    def chosen(names: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
        return {**{option_name: option_values[option_name] for option_name in names}, "home": folder, "as_json": False}

    command_by_step = (
        (
            "data",
            "data set",
            "data add --new-version",
            partial(data.add, file=option_values["file"], **chosen(_DATA_OPTIONS)),
        ),
        ("budget", "budget", "budget set", partial(rules.set_budget, **chosen(_BUDGET_OPTIONS))),
        ("questions", "policy", "policy set", partial(rules.set_policy, **chosen(_POLICY_OPTIONS))),
    )
    for step, setting_words, command_words, carry_out in command_by_step:
        if step in steps:
            carry_out()
        else:
            print(f"the {setting_words} stays as it was set before; to change it: undersong-party {command_words}")


def _keyword(name: str, annotation: object, default: object = None) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


# typer reads a command's options from its signature: these are the options of three other commands, each written there.
cast(Any, join).__signature__ = inspect.Signature(
    [
        _keyword(
            "package",
            Annotated[Path, typer.Argument(metavar="PACKAGE", help="The operator's package.")],
            inspect.Parameter.empty,
        ),
        _keyword("fingerprint", Fingerprint),
        _keyword(
            "file", Annotated[Path | None, typer.Option("--data", metavar="FILE", help="File or folder of notes.")]
        ),
        *(
            {**_POLICY_OPTIONS, **_BUDGET_OPTIONS, **_DATA_OPTIONS}
            | {name: _DATA_OPTIONS[name].replace(default=None) for name in _COLUMN_QUESTIONS}
            | {"epsilon": _BUDGET_OPTIONS["epsilon"].replace(default=None)}
        ).values(),
        _keyword("request", RequestOut),
        _keyword("home", HomeFolder),
        _keyword("as_json", AsJson, False),
    ]
)
