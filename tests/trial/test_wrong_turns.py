"""Wrong turns of people who left the path: each has its exit code, says what is wrong, and what to do about it."""

import json
import re
import shlex

import pytest

from tests.doubles.party_home import write_notes
from tests.doubles.tasks import make_task
from tests.trial.stranger import MODULES, command_of, separate, started, takes, told, type_in_process

pytestmark = pytest.mark.heavy

P, U = "undersong-party", "undersong"

# program, what is typed, exit code, a part of the problem, a part of the remedy
TURNS = [
    # the hospital
    (P, "status --home nowhere", 2, "this folder holds no party", "undersong-party enroll"),
    (P, "init 'Heart Institute!' --home other", 2, "Heart Institute!", ""),
    (P, "init heart --home heart", 2, "is not an empty folder", "--home"),
    (P, "enroll --home heart", 2, "exactly one of PACKAGE", "PACKAGE"),
    (P, "enroll nowhere.package --home heart", 2, "cannot be read", "check the path"),
    (P, "enroll heart.package --home heart", 2, "fingerprint must be compared", "--fingerprint"),
    (P, "enroll heart.package --fingerprint 1234 --home lung", 2, "is for 'heart'", "invite"),
    (P, "enroll --grant notes.jsonl --home heart", 2, "damaged or incomplete", "sent again"),
    (P, "check --offline --home lung", 2, "", ""),
    (P, "data show --home lung --frob", 2, "--frob", ""),
    (P, "data add nowhere.csv --home heart", 2, "no such file", "check the path"),
    (P, "data add notes.xls --home heart", 2, "unknown file type '.xls'", "save it as .xlsx or as CSV"),
    (P, "data add latin.csv --home heart", 2, "is not UTF-8", "--encoding latin-1"),
    (P, "data add notes.jsonl --text-field txt --home heart", 2, "has no column 'txt'", "has a similar name"),
    (P, "data add other.jsonl --home heart", 2, "was added before", "--new-version"),
    (P, "data refresh --home lung", 2, "no data set was added", "undersong-party data add"),
    (P, "data teacher-model --home heart", 2, "exactly one of FOLDER", "packaged"),
    (P, "budget set --epsilon 0 --delta 1e-5 --home heart", 2, "is not above 0", "undersong-party pause"),
    (P, "budget set --epsilon 1 --delta 1e-5 --per-run 2 --home heart", 2, "is more than", "raise the budget"),
    (P, "budget set --epsilon 1 --delta 7 --home heart", 2, "not between 0 and 1", "--help"),
    (P, "budget set --delta 1e-5 --home heart", 2, "Missing option '--epsilon'", ""),
    (P, "policy set --statistic everything --home heart", 2, "'everything' is unknown", "known are"),
    (P, "policy set --approval maybe --home heart", 2, "'maybe' is unknown", '"each" or "standing"'),
    (P, "policy set --unit family --home heart", 2, "'family' is unknown", "sample"),
    (P, "preview spring --home heart", 2, "no run 'spring'", "undersong-party requests"),
    (P, "approve spring --home heart", 2, "no run 'spring'", "undersong-party requests"),
    (P, "revoke --home heart", 2, "exactly one of RUN", "--coordinator"),
    (P, "outbox --entry 99 --home heart", 2, "no entry 99", "undersong-party outbox"),
    (P, "ledger --home lung", 2, "no such ledger", "undersong-party data add"),
    (P, "ledger --backup notes.jsonl --home heart", 2, "exists already", "another file"),
    (P, "restore-ledger --home heart", 2, "no backup of the ledger was named", "--charge-missing"),
    (P, "restore-ledger notes.jsonl --home heart", 3, "does not fit the chain", "backup"),
    (P, "restore-ledger --charge-missing --home heart", 2, "the ledger holds everything", "nothing to restore"),
    (P, "run --log-format xml --home heart", 2, "'xml' is unknown", "text or json"),
    (P, "run --home lung", 2, "joined no coordinator", "undersong-party enroll"),
    (P, "status --home heart", 6, "", ""),
    # the operator
    (U, "run list --home nowhere", 2, "holds no coordinator", "undersong coordinator init"),
    (U, "coordinator init --address localhost:1 --home office", 2, "holds a coordinator already", "--home"),
    (U, "coordinator init --address localhost --home new", 2, "localhost", ""),
    (U, "coordinator healthy --home office", 2, "no process serves this coordinator", "undersong coordinator serve"),
    (U, "invite heart --home office", 2, "is enrolled already", "undersong invite heart --again"),
    (U, "invite 'Heart!' --home office", 2, "Heart!", ""),
    (U, "sign lung.request.json --home office", 2, "was not compared", "--fingerprint"),
    (U, "sign lung.request.json --fingerprint 1234 --home office", 2, "is not the fingerprint", "invite it again"),
    (U, "sign nowhere.json --home office", 2, "nowhere.json", "check the path"),
    (U, "revoke nobody --home office", 2, "no such party", "undersong invite"),
    (U, "run plan nowhere.toml --home office", 2, "no such file", "undersong init"),
    (U, "run plan task/task.toml --parties heart,nobody --home office", 2, "not enrolled: nobody", "undersong parties"),
    (U, "run start spring --home office", 2, "no run 'spring'", "undersong run list"),
    (U, "run watch spring --home office", 2, "no run 'spring'", "undersong run list"),
    (U, "export spring --out out --home office", 2, "no run 'spring'", "undersong run list"),
    (U, "verify .", 2, "manifest.json: no such file", "finished run"),
    # the researcher
    (U, "init --out task/task.toml", 2, "exists already", "--out"),
    (U, "init --from latin.csv --out new.toml", 2, "is not UTF-8", "--encoding"),
    (U, "init --from rows.csv --out new.toml", 2, "no column looks like the text", "--text-field"),
    (U, "plan task/task.toml --set privacy.epsilonn=1", 2, "privacy.epsilonn: unknown key", "did you mean 'epsilon'"),
    (U, "plan task/task.toml --set privacy.epsilon=much", 2, "is not a number (given: 'much')", "write a number"),
    (U, "plan task/task.toml --set privacy.delta=2", 2, "privacy.delta: is not below 1", "choose a value below 1"),
    (U, "plan task/task.toml --set epsilon", 2, "is not KEY=VALUE", "--set privacy.epsilon=4"),
    (U, "plan task/task.toml --method wapp", 2, "wapp", "wasp"),
    (U, "simulate task/task.toml --set data.path='\"gone.jsonl\"' --out out", 2, "no such file", "check the path"),
    (U, "evaluate out --test gone.jsonl", 2, "no such folder", "finished run"),
]

WHO_ASKS = ("--operator", "Example Hospital", "--contact", "01 234 56")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """An office with one enrolled hospital and one that has not joined, in a folder whose name has a space."""
    folder = tmp_path_factory.mktemp("a stranger's place")
    with pytest.MonkeyPatch.context() as patched:
        prepared(folder, patched)
        yield folder


def prepared(folder, patched):
    from tests.doubles.hospitals import hospital, operator
    from tests.doubles.party_home import command

    for name, value in separate(folder).items():
        patched.setenv(name, value)
    patched.chdir(folder)
    write_notes(folder / "notes.jsonl")
    write_notes(folder / "other.jsonl", start=50)
    (folder / "notes.xls").write_bytes(b"\xd0\xcf")
    (folder / "latin.csv").write_bytes("text;label\nÄrztin;a\n".encode("latin-1"))
    (folder / "rows.csv").write_text("Bericht;Klasse\nein Text;a\n")
    make_task(folder / "task")
    office = ("--home", "office")
    operator("coordinator", "init", "--address", "localhost:7443", "--metrics", "", *WHO_ASKS, *office)
    for name in ("heart", "lung"):
        operator("invite", name, *office)
        command("init", name, "--home", name)
        fingerprint = operator("coordinator", "show", "--json", *office)

        own = hospital(
            "enroll", f"{name}.package", "--fingerprint", json.loads(fingerprint)["fingerprint"], "--home", name, "-q"
        )
        if name == "heart":
            operator("sign", f"{name}.request.json", "--fingerprint", own.strip(), *office)
            hospital("enroll", "--grant", f"{name}.grant", "--home", name)
            hospital("budget", "set", "--epsilon", 4, "--delta", "1e-4", "--home", name)
            hospital("policy", "set", "--question", "all", "--home", name)
            hospital("data", "add", "notes.jsonl", "--label-field", "label", "--home", name)
    hospital("revoke", "--coordinator", "--home", "lung")  # its request stays at the office; it has joined nobody


def test_at_least_forty_user_mistakes_are_tested():
    assert len({(program, line) for program, line, *_ in TURNS}) == len(TURNS) >= 40


@pytest.mark.slow
@pytest.mark.parametrize(("program", "line", "code", "problem", "remedy"), TURNS, ids=[turn[1] for turn in TURNS])
def test_user_mistake_gives_an_error_with_problem_and_remedy(
    program, line, code, problem, remedy, place, capsys, monkeypatch
):
    monkeypatch.chdir(place)
    words = shlex.split(line)
    said = type_in_process(program, words, capsys, monkeypatch)
    check_error(said, code, problem, remedy)
    if takes(program, words, "--json"):
        object_ = type_in_process(program, [*words, "--json"], capsys, monkeypatch)
        assert object_.code == code
        if problem:
            assert problem in told(object_)["problem"]
            assert remedy in told(object_)["remedy"]


@pytest.mark.slow
@pytest.mark.parametrize(("program", "line", "code", "problem", "remedy"), TURNS, ids=[turn[1] for turn in TURNS])
def test_user_mistakes_give_the_same_error_in_a_separate_process(program, line, code, problem, remedy, place):
    check_error(started(program, shlex.split(line), place, separate(place)), code, problem, remedy)


def check_error(said, code, problem, remedy):
    assert said.code == code, said
    assert "Traceback" not in said.err
    assert "internal error" not in said.err
    assert re.sub(r"[│\s]+", " ", problem) in re.sub(r"[│\s]+", " ", said.err), said
    if remedy:
        assert remedy in said.err.partition("remedy: ")[2], said
    advised = said.err.partition("remedy: ")[2]
    for named, *words in re.findall(r"(undersong(?:-party)?) ([a-z-]+)(?: ([a-z-]+))?", advised):
        assert named in MODULES
        assert command_of(named, [word for word in words if word])[1], f"{said.err}: {named} {words} is no command"
