"""A coordinator's folder as if much had happened in it, for screens with something on them."""

import json
import os
import time
from pathlib import Path

from tests.doubles.bench import run_federated
from tests.doubles.hospitals import CLINIC, HOSPITALS, clinic_task
from tests.doubles.parties import public_of
from tests.doubles.party_home import HashedEmbedder
from tests.doubles.stream import Credentials, make_home
from undersong.run.records import private_tables
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.defaults import RunOptions
from undersong_server.operations import enrolment, runs
from undersong_server.release.files import Signer, publish, report_data
from undersong_server.runs import task as tasks
from undersong_server.runs.folder import Awaited, AwaitedParty, RunFailure, RunStatus
from undersong_server.runs.planning import plan_run

GENERATORS = ("handbook", "mixed", "offdomain")
WEIGHTS = ((0.33, 0.33, 0.34), (0.46, 0.31, 0.23), (0.58, 0.27, 0.15), (0.63, 0.25, 0.12))


def example_coordinator(folder: Path) -> Path:
    """Five hospitals, one that was invited, and runs in several states; nobody serves them."""
    home = make_home(folder / "coordinator", name="north-hospitals")
    for place, name in enumerate(HOSPITALS):
        keys = Credentials(home, name, days=20 if place == 2 else None)
        with_registry(home, keys.name, place)
    enrolment.invite(home.path, "valley-clinic", contact="Dr. Lang, +49 30 5550199")
    task = clinic_task(folder)
    changes = ["method.samples=60", "method.rounds=4"]
    for name in ("triage spring", "triage summer", "triage autumn", "triage winter"):
        runs.plan(home.path, task, RunOptions(name=name), assignments=changes)
    _running(home, "triage spring")
    waiting = Awaited(
        (AwaitedParty("stella-maris", False, 340.0),),
        time.time() - 340,
        time.time() + 80,
        4,
        "waiting for stella-maris (away for 340 s); 4 of 5 have answered, the quorum is 4; in 80 s it goes on so",
    )
    home.run("triage spring").write_status(
        RunStatus(
            "running",
            1,
            None,
            time.time() - 900,
            "private sum: for each candidate text, how many of their records have it among their nearest ones (3 of 3)",
            3,
            5,
            "the texts of round 3 are written",
            waiting,
            charged=True,
        )
    )
    home.run("triage summer").write_status(
        RunStatus(
            "failed",
            1,
            None,
            time.time() - 9000,
            error=RunFailure(
                "handbook: the endpoint refuses the key", "correct the key, then: undersong run resume", 7
            ),
        )
    )
    return home.path


def with_registry(home: CoordinatorHome, name: str, place: int) -> None:
    registry = home.registry()
    registry.seen(
        name,
        now=time.time() - 400 * place,
        software="undersong 0.3.0",
        embedder="53aa51172d142c89" if place != 3 else "77be0c1fd2",
        epsilon_left=3.2 if place == 1 else None,
        paused=place == 4,
    )
    registry.close()


def _running(home: CoordinatorHome, name: str) -> None:
    folder = home.run(name)
    folder.request("run")
    begun = time.time() - 1300
    for name in ("plan.json", "requested.json"):
        os.utime(folder.path / name, (begun, begun))
    said = ["waits for people's approval", *(f"{each} has approved: {n} of 5" for n, each in enumerate(HOSPITALS, 1))]
    stamps = (time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(begun + 90 * place)) for place in range(len(said)))
    lines = (f"{stamp} {line}\n" for stamp, line in zip(stamps, said, strict=True))
    (folder.path / "log.txt").write_text("".join(lines), encoding="utf-8")
    notes = [json.loads(line) for line in (CLINIC / "data" / "test.jsonl").read_text().splitlines()[:60]]
    usage, sums = {}, folder.planned().load().plan.sums
    for round_, row in enumerate(WEIGHTS[:3]):
        folder.tell("record", {"name": "weights", "round": round_, "value": row})
        if round_:
            folder.tell("record", {"name": "weights noise", "round": round_, "value": [0.04, 0.03, 0.03]})
        at = time.time() - 700 + 200 * round_
        mine = notes[round_ * 15 : (round_ + 1) * 15]
        texts = [(note["text"], note["label"], GENERATORS[place % 3]) for place, note in enumerate(mine)]
        for place, generator in enumerate(GENERATORS):
            kept = 5 * (round_ + 1)
            usage[generator] = {
                "orders": kept,
                "calls": kept + 2,
                "kept": kept,
                "retried": 2,
                "dropped": place,
                "cut": 0,
                "prompt_tokens": 4200 * (round_ + 1),
                "completion_tokens": 900 * (round_ + 1),
                "price_usd": 0.04 * (round_ + 1),
                "faults": {"duplicate": 2},
                "answered": kept + 2,
                "busy_s": 12.0 * (place + 1) * (round_ + 1),
                "timed": 0 if place else kept,
                "latency_s": 0 if place else 1.8 * kept,
            }
        folder.tell("texts", {"at": at, "step": f"round {round_ + 1}", "round": round_, "texts": texts})
        folder.tell("usage", {"at": at, "usage": usage})
        if round_ < 2:
            folder.tell(
                "sum",
                {
                    "at": at + 40,
                    "name": sums[round_].name,
                    "sigma": 21.4,
                    "survivors": list(HOSPITALS),
                    "shares": list(WEIGHTS[round_ + 1]),
                    "noise": [0.05, 0.05, 0.05],
                },
            )


def add_result(home: Path, folder: Path, name: str = "triage result", contact: str = "") -> None:
    """A finished run: real private sums over the clinic's notes, and a release that the coordinator has signed.

    Args:
        contact: of its makers; "" leaves that of the clinic's task, an example.
    """
    task_file, changes = clinic_task(folder), ["method.samples=120", "method.rounds=3"]
    changes += [f"publication.contact={json.dumps(contact)}"] if contact else []
    runs.plan(home, task_file, RunOptions(name=name), assignments=changes)
    task = tasks.load(task_file, changes)
    run_plan = plan_run(task)
    outcome = run_federated(
        task, run_plan, folder / "parties of the result", private_tables(task, 1), seed=1, name=name
    )
    opened = CoordinatorHome(home)
    run = opened.run(name)
    identities = {each: public_of(each) for each in outcome.receipts}
    signer = Signer(opened.settings.name, opened.authority(), identities)
    report = report_data(run_plan, outcome, HashedEmbedder().lengths, created="2026-05-01 12:00")
    publish(run.output, outcome, report, signer=signer)
    run.request("run")
    run.write_status(RunStatus("finished", 1, None, time.time() - 300))
