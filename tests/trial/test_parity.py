"""Nothing that a page shows or does is missing from the command line: each address of both pages, with its command."""

import pytest

from tests.doubles.party_home import command
from tests.doubles.stream import make_home
from tests.trial.stranger import command_of
from undersong_client.cli.options import checkpoints_folder
from undersong_client.page.application import PartyPaths
from undersong_client.page.application import build as build_page
from undersong_common.pages.site import Site
from undersong_server.console.application import build as build_console
from undersong_server.console.run_pages import ConsoleContext

pytestmark = pytest.mark.heavy

# A page's own: one's password, logging out, what an action has made to be fetched once; and what scripts read.
SHARED = {"GET /account", "POST /account", "POST /logout", "GET /download/{key}"}
SHARED |= {"GET /api/parties", "GET /api/runs", "GET /api/runs/{run}"}

CONSOLE = {
    "GET /": "run list",
    "GET /parties": "parties",
    "GET /parties/one/{name}": "parties --json",
    "GET /parties/invite": "coordinator show",
    "POST /parties/invite": "invite --full-name --contact --days --again",
    "GET /parties/sign": "sign",
    "POST /parties/sign": "sign --fingerprint",
    "GET /parties/one/{name}/letter": "invite --contact",
    "POST /parties/one/{name}/contact": "contact",
    "POST /parties/one/{name}/full-name": "full-name",
    "POST /coordinator": "coordinator change --operator --contact",
    "POST /parties/one/{name}/revoke": "revoke",
    "POST /parties/one/{name}/leave-out": "leave-out",
    "POST /parties/one/{name}/take-in": "leave-out --undo",
    "GET /runs": "run list --find --tag --archive",
    "GET /runs/new": "init",
    "POST /runs/new": "plan",
    "GET /runs/new/{draft}": "plan --set",
    "POST /runs/new/{draft}": "plan --set",
    "POST /runs/new/{draft}/live": "run plan --name --set --parties --patience --revises",
    "GET /runs/new/{draft}/task.toml": "init",
    "POST /runs/one/{run}/put-away": "run put-away",
    "POST /runs/one/{run}/take-back": "run put-away --back",
    "POST /runs/one/{run}/note": "run note --text --tags",
    "POST /runs/one/{run}/marks": "run mark --remove",
    "GET /runs/one/{run}/without-marked.zip": "export --out --without-marked",
    "GET /runs/one/{run}": "run watch",
    "POST /runs/one/{run}/start": "run start",
    "POST /runs/one/{run}/pause": "run pause",
    "POST /runs/one/{run}/resume": "run resume",
    "POST /runs/one/{run}/stop": "run stop",
    "GET /runs/one/{run}/result": "run search --label --generator --marked",
    "POST /runs/one/{run}/result": "run evaluate --test --text-field --label-field",
    "GET /runs/one/{run}/report": "export --out",
    "GET /runs/one/{run}/file/{name}": "export --out",
    "GET /runs/one/{run}/archive.zip": "export --out",
    "GET /compare": "run compare",
    "GET /compare/figures.csv": "run compare --csv",
    "GET /generators": "run generators",
    "POST /generators/test": "run generators --test",
    "GET /audit": "console audit",
    "GET /audit/audit.jsonl": "console audit --json",
    "GET /audit/support.zip": "console support",
    "GET /people": "console people",
    "POST /people": "console link --role",
    "POST /people/link": "console link",
    "POST /people/remove": "console people --remove",
    "POST /people/session": "console sessions --end",
    "POST /people/token": "console tokens --make --label",
    "POST /people/token/end": "console tokens --end",
}
PAGE = {
    "GET /": "status",
    "POST /pause": "pause",
    "POST /resume": "resume",
    "GET /requests": "requests",
    "GET /requests/{manifest}": "preview --print",
    "GET /requests/{manifest}/approve": "approve",
    "GET /requests/{manifest}/dossier": "dossier",
    "GET /requests/{manifest}/dossier.html": "dossier --out",
    "POST /requests/{manifest}/approve": "approve --despite-cautions --name --role --comment",
    "POST /requests/{manifest}/reject": "reject --reason",
    "POST /requests/{manifest}/revoke": "revoke --reason",
    "GET /budget": "budget show",
    "POST /budget": "budget set --epsilon --delta",
    "POST /budget/data": "data add --text-field --label-field --user-field --user-is --period",
    "GET /budget/ledger.jsonl": "ledger --backup",
    "GET /outbox": "outbox",
    "GET /outbox/{number}": "outbox --entry",
    "GET /outbox/{number}/bytes": "outbox --entry --raw",
    "GET /policy": "policy show",
    "POST /policy": "policy set --question --unit --minimum-parties --approval --declared-units"
    " --require-party --require-nobody --require-post-quantum --share-budget --hide-budget --share-policy",
    "POST /policy/duty": "policy duty",
    "GET /check": "check --offline",
    "GET /coordinator": "check",
    "POST /coordinator/package": "enroll --fingerprint --request-out",
    "POST /coordinator/grant": "enroll --grant",
    "POST /coordinator/renew": "enroll --renew",
    "POST /coordinator/leave": "revoke --coordinator",
    "GET /log": "page --audit",
    "GET /log/evidence.zip": "evidence",
}


@pytest.fixture
def served(monkeypatch):
    """Collects what a page adds to the log-in that both share."""
    found: list[str] = []
    for verb in ("get", "post"):
        add = getattr(Site, verb)

        def added(self, path, *rest, verb=verb, add=add, **options):
            found.append(f"{verb.upper()} {path}")
            add(self, path, *rest, **options)

        monkeypatch.setattr(Site, verb, added)
    return found


def check(served, commands, program):
    assert set(served) - SHARED == set(commands)
    for address, typed in commands.items():
        words = [word for word in typed.split() if not word.startswith("--")]
        found, names, rest = command_of(program, words)
        assert (names, rest) == (words, []), f"{address}: {program} {typed}"
        known = {option for each in found.params for option in (*each.opts, *each.secondary_opts)} | {"--json"}
        missing = set(typed.split()) - set(words) - known
        assert not missing, f"{address}: {program} {' '.join(words)} has no {missing}"


def test_every_action_of_the_console_has_a_command(served, tmp_path):
    make_home(tmp_path / "office")
    build_console(ConsoleContext(tmp_path / "office", ()), hosts=["localhost"], port=1)
    check(served, CONSOLE, "undersong")


def test_every_action_of_the_hospital_s_page_has_a_command(served, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    command("init", "alpha", "--home", tmp_path / "alpha")
    build_page(PartyPaths(tmp_path / "alpha", checkpoints_folder(tmp_path / "alpha")), hosts=["localhost"], port=1)
    check(served, PAGE, "undersong-party")
