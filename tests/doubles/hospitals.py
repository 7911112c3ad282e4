"""A whole federation as people set it up: every command by the programs' own command lines, daemons as processes."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.doubles.party_home import set_up
from tests.doubles.processes import HOSPITAL, ROOT, CoordinatorProcess, Process, free_port, succeed
from tests.doubles.typed import typed
from undersong_client.answering.computation import HospitalComputation
from undersong_client.home import PartyHome
from undersong_client.records.snapshot import EMBEDDINGS
from undersong_common.models.embedding import Embedder

CLINIC = ROOT / "examples" / "clinic"
OPERATOR, CONTACT = "Example Hospital", "01 234 56"
HOSPITALS = ("childrens", "harbour-general", "heart-institute", "ranges-district", "stella-maris")


def operator(*arguments: object, code: int = 0) -> str:
    """Standard output of an operator's command (in this process: what differs is only the start-up time)."""
    from undersong.cli import app

    return _invoked(app, arguments, code).stdout


def operator_screen(*arguments: object, code: int = 0) -> str:
    """All that an operator's command says, its error included."""
    from undersong.cli import app

    return _invoked(app, arguments, code).output


def hospital(*arguments: object, code: int = 0) -> str:
    from undersong_client.cli.app import app

    return _invoked(app, arguments, code).stdout


def _invoked(app: Any, arguments: Sequence[object], code: int) -> Any:
    done = typed(app, *arguments, standalone_mode=False)
    found = getattr(done.exception, "exit_code", done.exit_code)
    if isinstance(done.return_value, int) and not found:
        found = done.return_value
    assert found == code, f"{arguments}: exit code {found}\n{done.output}\n{done.exception!r}"
    return done


class Hospital:
    """One party: its folder, its notes, its daemon."""

    def __init__(
        self,
        name: str,
        folder: Path,
        notes: Path,
        *,
        weights: bool = True,
        packages: Path | None = None,
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.home = folder / name
        self.notes = notes
        self.daemon = Process(
            HOSPITAL,
            ["run", "--home", self.home, "--no-proxy"],
            folder / f"{name}.log",
            {"XDG_STATE_HOME": str(folder / "state"), **(env or {})},
            weights=weights,
            packages=packages,
            prefix=prefix,
        )

    def __call__(self, *arguments: object, code: int = 0) -> str:
        return hospital(*arguments, "--home", self.home, code=code)

    def embed(self, embedder: Embedder) -> None:
        """Embeds its notes in this process, into the cache in which its daemon finds them: that loads no model then."""
        HospitalComputation(PartyHome(self.home), embedder).warm()

    def outbox(self) -> list[dict[str, Any]]:
        return list(json.loads(self("outbox", "--json"))["entries"])


class Operated:
    """A coordinator in a folder, as its operator types it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home, self.port = folder, folder / "coordinator", free_port()

    def operator(self, *arguments: object, code: int = 0) -> str:
        return operator(*arguments, "--home", self.home, code=code)

    def found(self) -> None:
        address = f"localhost:{self.port}"
        place = ("--address", address, "--bind", f"127.0.0.1:{self.port}", "--metrics", "")
        self.operator("coordinator", "init", *place, "--operator", OPERATOR, "--contact", CONTACT)

    @property
    def fingerprint(self) -> str:
        return str(json.loads(self.operator("coordinator", "show", "--json"))["fingerprint"])

    def verdict(self, folder: Path) -> dict[str, Any]:
        """What `undersong verify` says of a published folder to somebody who knows this coordinator's fingerprint."""
        return dict(json.loads(operator("verify", folder, "--fingerprint", self.fingerprint, "--json")))


def enrol(
    folder: Path,
    operate: Callable[..., str],
    each: Any,
    told: str,
    *rules: tuple[object, ...],
    options: tuple[object, ...] = (),
) -> None:
    """Invites a party, makes it with these options of ``init`` and these rules, and enrols it.

    What is carried between the two lies in ``folder``.
    """
    package, request, grant = (folder / f"{each.name}.{kind}" for kind in ("package", "request", "grant"))
    operate("invite", each.name, "--out", package)
    set_up(each.home, ("init", each.name, *options), *rules)
    made = each("enroll", package, "--fingerprint", told, "--request-out", request, "--json")
    operate("sign", request, "--fingerprint", json.loads(made)["fingerprint"], "--out", grant)
    each("enroll", "--grant", grant)


class Federation(Operated):
    """A coordinator and its hospitals in one folder; everything ends with the context.

    Args:
        notes: each hospital's file of notes by name.
        noise_seed: tests of equality: reproducible keys and noise.
        approval: "standing", or "each" run waits for `approve`.
        weights: whether the processes load the embedding model.
        packages: by "coordinator" and the hospitals' names, the folder of packages that are installed there.
        env: by the same names, further variables of the process's environment.
        prefix: a program, with its arguments, that starts each process.
    """

    def __init__(
        self,
        folder: Path,
        notes: Mapping[str, Path],
        *,
        noise_seed: int | None = None,
        approval: str = "standing",
        keepalive_s: float = 5.0,
        weights: bool = True,
        packages: Mapping[str, Path] | None = None,
        env: Mapping[str, Mapping[str, str]] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        super().__init__(folder)
        installed, variables = dict(packages or {}), dict(env or {})
        self.hospitals = {
            name: Hospital(
                name,
                folder,
                path,
                weights=weights,
                packages=installed.get(name),
                env=variables.get(name),
                prefix=prefix,
            )
            for name, path in notes.items()
        }
        self.task = CLINIC / "task.toml"
        self.coordinator = CoordinatorProcess(
            self.home,
            self.port,
            *("--keepalive", keepalive_s),
            weights=weights,
            packages=installed.get("coordinator"),
            env=variables.get("coordinator"),
            prefix=prefix,
        )
        self._seed = noise_seed
        self._approval = approval

    def __enter__(self) -> "Federation":
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.hospitals.values():
            if each.daemon.process is not None:
                each.daemon.process.terminate()
        for each in self.hospitals.values():
            each.daemon.end()
        self.coordinator.end()

    def set_up(self, *, embedded: Sequence[str] = (), refreshed: Sequence[str] = ()) -> None:
        """From nothing to a served coordinator with every daemon started.

        Args:
            embedded, refreshed: the hospitals whose notes are embedded before their daemons start, in this process or
                by `data refresh` in one of its own, as `data add` does. The others' daemons embed theirs.
        """
        self.found()
        self.coordinator.start()
        for each in self.hospitals.values():
            self.enrol(each)
        if embedded:
            embedder = Embedder.load()
            for name in embedded:
                self.hospitals[name].embed(embedder)
        for name in refreshed:
            place, state = self.hospitals[name].home, {"XDG_STATE_HOME": str(self.folder / "state")}
            succeed(HOSPITAL, ["data", "refresh", "--home", place], env=state, timeout_s=900)
            assert (Path(PartyHome(place).settings.cache) / EMBEDDINGS).exists()
        for each in self.hospitals.values():
            each.daemon.start()

    def enrol(self, each: Hospital) -> None:
        seed = () if self._seed is None else ("--insecure-noise-seed", self._seed)
        rules = (
            ("budget", "set", "--epsilon", 50, "--delta", "1e-3"),
            ("policy", "set", "--question", "all", "--approval", self._approval),
        )
        enrol(self.folder, self.operator, each, self.fingerprint, *rules, options=seed)
        fields = ("--text-field", "text", "--label-field", "label", "--user-field", "patient")
        each("data", "add", each.notes, *fields)

    def status(self, run: str) -> dict[str, Any]:
        return dict(json.loads(self.operator("run", "show", run, "--json"))["status"])

    def wait(self, run: str, states: Sequence[str], timeout_s: float) -> dict[str, Any]:
        """The run's status once it is in one of ``states``."""
        path = self.home / "runs" / run / "status.json"
        end = time.monotonic() + timeout_s
        while True:
            status: dict[str, Any] = json.loads(path.read_text())
            if status["state"] in states:
                return status
            assert time.monotonic() < end, f"{status}\n{self.coordinator.text()[-3000:]}"
            time.sleep(0.1)


def clinic_task(folder: Path) -> Path:
    """The clinic's task file without its test set: training the task model is no part of a federation."""
    text = (CLINIC / "task.toml").read_text(encoding="utf-8")
    head, _, tail = text.partition("[evaluation]")
    changed = (head + tail[tail.index("[output]") :]).replace('"data/', f'"{CLINIC}/data/')
    path = folder / "task.toml"
    path.write_text(changed, encoding="utf-8")
    return path


def simulated(
    task: Path, folder: Path, federation: Federation, changes: Sequence[str], seed: int, run: str = ""
) -> Path:
    """The same run with every party in one process; ``run`` gives it another name than the simulation would."""
    notes = [str(each.notes) for each in federation.hospitals.values()]
    # The coordinator states its operator in every plan, and a simulation has only the task to read it from.
    asker = ("--set", f"task.operator={json.dumps(OPERATOR)}", "--set", f"task.contact={json.dumps(CONTACT)}")
    arguments = ["--insecure-noise-seed", seed, "--set", f"data.path={json.dumps(notes)}", *asker, *changes]
    if run:
        from undersong.run.workspace import Workspace
        from undersong_server.runs.task import load

        assignments = [text for text in arguments if isinstance(text, str) and "=" in text]
        arguments_kept = {"seed": 0, "insecure_noise_seed": seed}
        workspace = Workspace(folder, load(task, assignments), arguments_kept, fresh=False)
        workspace.journal.put_json("run/name", run)
        workspace.journal.close()
    operator("simulate", task, "--out", folder, *arguments)
    return folder


def some_notes(folder: Path, records: int, hospitals: Sequence[str] = HOSPITALS) -> dict[str, Path]:
    """The first notes of the clinic's hospitals, in files of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for name in hospitals:
        lines = (CLINIC / "data" / "hospitals" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        files[name] = folder / f"{name}.jsonl"
        files[name].write_text("".join(f"{line}\n" for line in lines[:records]), encoding="utf-8")
    return files


def exported(federation: Federation, run: str, folder: Path) -> dict[str, Any]:
    """The verdict on a finished run, which holds; every ledger is whole, and neither side's log has a note's text."""
    federation.operator("export", run, "--out", folder)
    verdict = federation.verdict(folder)
    assert verdict["holds"], verdict["faults"]
    written = federation.coordinator.text() + "".join(each.daemon.text() for each in federation.hospitals.values())
    for each in federation.hospitals.values():
        each("ledger", "--verify")
        for line in each.notes.read_text(encoding="utf-8").splitlines():
            assert json.loads(line)["text"] not in written
    return verdict
