"""The coordinator as a Flower ServerApp: a run of the coordinator's folder over a Flower Grid.

``flwr run`` starts it with the run configuration of bundle/pyproject.toml (``[tool.flwr.app.config]``). The folder is
the one that ``undersong coordinator init``, ``invite`` and ``sign`` made: its registry says who the parties are and by
which keys, and keeps plan, journal and outputs of every run, whichever transport carried it.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
from pydantic import BaseModel, ConfigDict

from undersong_common.errors import ConfigurationError, PeerFault, UndersongError
from undersong_common.files import holding
from undersong_common.printable import printable
from undersong_common.program import configuration
from undersong_protocol.secagg.keys import verified
from undersong_protocol.wire import codec
from undersong_protocol.wire.framing import FrameLimits
from undersong_protocol.wire.messages import federation_pb2 as wire
from undersong_server.coordinator.home import CoordinatorHome
from undersong_server.coordinator.run_driver import RunDriver, tell_ending
from undersong_server.defaults import RunOptions, public_cache_path
from undersong_server.federation.exchange import Lazily
from undersong_server.operations import enrolment, releases, runs
from undersong_server.release.files import Signer
from undersong_server.runs.folder import AwaitedParty, RunFolder
from undersong_server.runs.planning import Planned

OUTSTANDING = 100  # messages under way at a time: what they bring lies in memory until it is sent
APPROVAL_S = 10.0  # pause between two questions for an approval, each of which starts a process at the party
CHALLENGE_BYTES = 32
INTRODUCTION_S = 30.0  # longest wait for a node's introduction
PULL_S = 0.3  # pause between two checks for replies
PULL_SOON_S = 0.05  # the same where the number of messages under way is limited
LATE_S = 5.0  # a message stays valid this much longer than its reply is waited for

app = ServerApp()


@app.main()  # type: ignore[untyped-decorator]  # flwr has no types
def main(grid: Grid, context: Context) -> None:
    """Plans the run if it is new, drives it to its end, and copies its outputs into ``out`` if that is configured."""
    stated_settings = {
        setting_name: setting_value for setting_name, setting_value in context.run_config.items() if setting_value != ""
    }
    if "coordinator" not in stated_settings:
        raise ConfigurationError(
            "the run configuration does not name the coordinator's folder",
            'name it: flwr run . --run-config \'coordinator="/path" task-file="/path/task.toml"\'',
        )
    settings = configuration.validate(FlowerRunSettings, stated_settings, "the run configuration")
    coordinator_home = CoordinatorHome(settings.coordinator)
    if coordinator_home.settings.storage:
        raise ConfigurationError(
            f"{coordinator_home.path}: Flower runs have no standby, and this coordinator's state is in a shared"
            " database",
            "make a coordinator without --storage for Flower",
            code="storage",
        )
    run_folder = coordinator_home.run(planned_run(settings, context.run_id))
    busy_error = ConfigurationError(f"run {run_folder.name!r} is under way already", "wait for it, or stop it")
    with holding(run_folder.path / "driver.lock", busy_error):  # Two drivers of one run would both write its journal.
        drive(grid, coordinator_home, run_folder)
    if settings.out is not None:
        exported_run = releases.export(coordinator_home.path, run_folder.name, settings.out)
        print(f"wrote {', '.join(exported_run.files)} into {settings.out}", flush=True)


class FlowerRunSettings(BaseModel):
    """The configuration of a Flower run, as ``flwr run`` gives it.

    Attributes:
        coordinator: the coordinator's folder.
        task_file: a task file on the SuperLink's machine; not needed if ``run`` exists already.
        run: the run's name; "" makes one of the task's name and Flower's run id. A name that exists is continued.
        parties: names separated by commas; "" takes everyone who is enrolled.
        out: a folder that the outputs are copied into, or None.
        seed: seed of everything but noise, keys and masks.
        patience_s: longest wait of a message for a party.
        insecure_noise_seed: tests only, if not negative; the parties run with this seed too.
    """

    model_config = ConfigDict(frozen=True, alias_generator=lambda name: name.replace("_", "-"))

    coordinator: Path
    task_file: Path | None = None
    run: str = ""
    parties: str = ""
    out: Path | None = None
    seed: int = 0
    patience_s: float = 300.0
    insecure_noise_seed: int = -1


def planned_run(settings: FlowerRunSettings, flower_run: int) -> str:
    """Plans the run where it is new, and returns its name. Raises ConfigurationError where it cannot be planned."""
    if settings.run and CoordinatorHome(settings.coordinator).run(settings.run).exists:
        return settings.run
    if settings.task_file is None:
        raise ConfigurationError(
            f"no run {settings.run!r} is planned and the run configuration names no task-file",
            "add task-file, an absolute path on the SuperLink's machine",
        )
    new_run = runs.plan(
        settings.coordinator,
        settings.task_file,
        RunOptions(
            name=settings.run or None,
            suffix=f"{flower_run:x}",
            parties=[party_name.strip() for party_name in settings.parties.split(",") if party_name.strip()]
            if settings.parties
            else None,
            seed=settings.seed,
            patience_s=settings.patience_s,
            insecure_noise_seed=settings.insecure_noise_seed if settings.insecure_noise_seed >= 0 else None,
        ),
    )
    return new_run.run


def drive(grid: Grid, home: CoordinatorHome, run_folder: RunFolder) -> None:
    """Drives the run to its end. Raises UndersongError with its reason where it did not finish."""
    environment = dict(os.environ)
    identities = enrolment.identities(home.path)
    run_driver = FlowerRunDriver(
        run_folder,
        grid,
        identities,
        home.storage.last_turn[0],
        public_cache=public_cache_path(environment),
        environment=environment,
        number=run_folder.requested().number,
        signer=Signer(home.settings.name, home.authority(), identities),
    )
    run_driver.run()
    status = run_folder.status()
    if status.state == "failed":
        stored_plan = run_folder.planned()
        tell_ending(run_driver.carrier, run_folder, status, stored_plan.roster, stored_plan.patience_s)
    if status.state != "finished":
        error = status.error
        raise UndersongError(
            f"the run is {status.state}" if error is None else error.problem, "" if error is None else error.remedy
        )


class FlowerRunDriver(RunDriver):
    """One run over Flower's Grid, its link to the parties' SuperNodes.

    Args:
        identities: Ed25519 public key of every enrolled party, by name.
        heard: the last epoch of a serving process of this folder, which parties may have seen in requests.
        rest: see :class:`RunDriver`.
    """

    def __init__(
        self, run_folder: RunFolder, grid: Grid, identities: Mapping[str, bytes], heard: int = 0, **rest: Any
    ) -> None:
        super().__init__(run_folder, **rest)
        self._reported: list[str] = []
        self.carrier = self._transport = FlowerTransport(
            grid,
            identities=identities,
            say=self.say,
            watch=self.check,
            outstanding=OUTSTANDING,
            reply_bytes=lambda: self._reply_bytes,
            epoch=heard,
        )

    def missing(self, planned: Planned) -> tuple[AwaitedParty, ...]:
        nodes = self._transport.locate(timeout_s=planned.patience_s)
        missing_parties = [party_name for party_name in planned.roster if party_name not in nodes]
        if missing_parties and missing_parties != self._reported:
            self.say(f"waiting for the SuperNodes of {', '.join(missing_parties)}")
        self._reported = missing_parties
        return tuple(AwaitedParty(party_name, False, None) for party_name in missing_parties)

    def sleep(self, seconds: float) -> None:
        time.sleep(max(seconds, APPROVAL_S))

    def say(self, message: str) -> None:
        """Adds a line to the run's own log and prints it, since Flower keeps what is printed as the log of its run."""
        super().say(message)
        print(message, flush=True)

    def run(self) -> None:
        super().run()
        print(f"{self._transport.messages} Flower messages", flush=True)


def _introduction_request(challenge: bytes) -> bytes:
    return wire.Request(version=codec.VERSION, introduce=wire.Introduce(challenge=challenge)).SerializeToString()


INTRODUCE = _introduction_request(b"")  # It needs no challenge: the node has proved its identity.


class FlowerTransport:
    """Implements ``undersong_server.federation.exchange.BatchTransport``: one Flower message per party and exchange.

    Flower knows nodes, not parties. A node names its party in its introduction and signs it, with a random challenge
    and its own address, by the party's identity key. The newest node that does so by a name has it.

    Args:
        grid: of the run.
        identities: Ed25519 public key by party name, of those who are enrolled; a node that does not prove it is left
            aside. None takes the key that a node states (one owner's simulation).
        say: called with a sentence for each node that is left aside.
        watch: called while replies are missing; what it raises ends the waiting.
        outstanding: messages under way at a time; None sends all of an exchange at once.
        reply_bytes: returns the largest size of a reply to the run, None where its plan is not known.
        epoch: which every request carries; 0 carries none.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        identities: Mapping[str, bytes] | None,
        say: Callable[[str], None] = lambda _words: None,
        watch: Callable[[], None] = lambda: None,
        outstanding: int | None = None,
        reply_bytes: Callable[[], int | None] = lambda: None,
        epoch: int = 0,
    ) -> None:
        self._grid = grid
        self._identities = identities
        self._say = say
        self._watch = watch
        self._outstanding = outstanding
        self._reply_bytes = reply_bytes
        self._epoch_field = wire.Request(epoch=epoch).SerializeToString()  # appended to a message, it is a field of it
        self._nodes: dict[str, int] = {}
        self._answered: set[int] = set()  # nodes that have introduced themselves, under any name
        self._introductions: dict[str, bytes] = {}
        self.messages = 0

    def locate(self, *, timeout_s: float) -> list[str]:
        """Asks every new node to prove which party it is; returns the names of all known parties."""
        present_nodes = list(self._grid.get_node_ids())
        self._answered &= set(present_nodes)  # A node that comes back may be another program.
        challenge_by_node = {node: os.urandom(CHALLENGE_BYTES) for node in present_nodes if node not in self._answered}
        requests = {node: [_introduction_request(node_challenge)] for node, node_challenge in challenge_by_node.items()}
        # Without this limit any silent node would delay each check by the whole patience.
        wait_s = min(timeout_s, INTRODUCTION_S)
        for node, replies in self._deliver_requests(requests, wait_s).items():
            if replies and self._note_introduction(node, challenge_by_node[node], replies[0]):
                self._answered.add(node)
        return sorted(self._nodes)

    def exchange(self, requests: Mapping[str, bytes], *, timeout_s: float) -> Mapping[str, bytes]:
        """Sends one request per party. The introduction by which a node was found answers the first such request."""
        introduction_by_party = {
            party_name: self._introductions.pop(party_name)
            for party_name, party_request in requests.items()
            if party_request == INTRODUCE and party_name in self._introductions
        }
        other_requests = {
            party_name: [party_request]
            for party_name, party_request in requests.items()
            if party_name not in introduction_by_party
        }
        return introduction_by_party | {
            party_name: replies[0]
            for party_name, replies in self.exchange_batches(other_requests, timeout_s=timeout_s).items()
        }

    def exchange_batches(
        self, requests: Mapping[str, Sequence[bytes]], *, timeout_s: float
    ) -> Mapping[str, Sequence[bytes]]:
        if not requests:
            return {}
        present_nodes = set(self._grid.get_node_ids())
        if (
            any(self._nodes.get(party_name) not in present_nodes for party_name in requests)
            and present_nodes - self._answered
        ):
            self.locate(timeout_s=timeout_s)
        party_by_node = {self._nodes[party_name]: party_name for party_name in requests if party_name in self._nodes}
        replies = self._deliver_requests(Lazily(party_by_node, lambda node: requests[party_by_node[node]]), timeout_s)
        return {party_by_node[node]: node_replies for node, node_replies in replies.items() if node_replies}

    def _deliver_requests(self, requests: Mapping[int, Sequence[bytes]], timeout_s: float) -> dict[int, list[bytes]]:
        """The replies by node. Flower's own loop asks every three seconds and cannot be interrupted; this one can."""
        unsent_nodes = list(requests)[::-1]
        asked_by_message: dict[str, tuple[int, int]] = {}
        replies_by_node: dict[int, list[bytes]] = {}
        give_up_at_s = time.monotonic() + timeout_s
        while unsent_nodes or asked_by_message:
            if self._outstanding is None:
                free_slot_count = len(unsent_nodes)
            else:
                free_slot_count = self._outstanding - len(asked_by_message)
            node_batch = [unsent_nodes.pop() for _ in range(min(free_slot_count, len(unsent_nodes)))]
            asked_by_message |= self._push_messages(
                {node: requests[node] for node in node_batch}, max(give_up_at_s - time.monotonic(), 1.0)
            )
            if asked_by_message:
                arrived_messages = list(self._grid.pull_messages(list(asked_by_message)))
            else:
                arrived_messages = []
            for message in arrived_messages:
                message_metadata, request_id = message.metadata, message.metadata.reply_to_message_id
                node_and_count = asked_by_message.get(request_id)
                # Errors come from the SuperLink. A node's reply counts only for a message that this node was sent.
                if node_and_count is None or (
                    message_metadata.src_node_id != node_and_count[0] and not message.has_error()
                ):
                    self._say(
                        f"the SuperNode of {self._party_of_node(message_metadata.src_node_id)} brings a reply to no"
                        " message that it"
                        " was sent in this exchange; left aside"
                    )
                    continue
                del asked_by_message[request_id]
                if (replies := self._read_replies(*node_and_count, message)) is not None:
                    replies_by_node[node_and_count[0]] = replies
            if time.monotonic() > give_up_at_s:
                break
            self._watch()
            if asked_by_message and not (unsent_nodes and arrived_messages):
                time.sleep(PULL_S if self._outstanding is None else PULL_SOON_S)
        return replies_by_node

    def _push_messages(self, requests: Mapping[int, Sequence[bytes]], ttl_s: float) -> dict[str, tuple[int, int]]:
        """Sends messages and returns (node, number of requests) by their ids."""
        if not requests:
            return {}
        messages = [
            Message(
                RecordDict(
                    {
                        codec.RECORD: ConfigRecord(
                            {codec.REQUESTS: [request_bytes + self._epoch_field for request_bytes in node_requests]}
                        )
                    }
                ),
                dst_node_id=node,
                message_type=codec.MESSAGE_TYPE,
                ttl=ttl_s + LATE_S,
            )
            for node, node_requests in requests.items()
        ]
        self.messages += len(messages)
        try:
            pushed_ids = {message_id for message_id in self._grid.push_messages(messages) if message_id}
        except ObjectPushError:  # A busy SuperLink may take a repeated part for another, or forget the push.
            self._say("the SuperLink did not take all messages; those parties count as not asked")
            return {}
        asked_by_message = {
            message.metadata.message_id: (node, len(batch))
            for message, (node, batch) in zip(messages, requests.items(), strict=True)
        }
        return {
            message_id: asked_node for message_id, asked_node in asked_by_message.items() if message_id in pushed_ids
        }

    def _read_replies(self, node_id: int, request_count: int, message: Message) -> list[bytes] | None:
        """The replies to ``request_count`` requests; None for a message that does not count as an answer."""
        if message.has_error():
            # Only the code is told, because the reason may quote anything.
            self._say(f"the SuperNode of {self._party_of_node(node_id)} brings Flower's error {message.error.code}")
            return None
        if codec.RECORD in message.content:
            replies = codec.batch(message.content[codec.RECORD], codec.REPLIES)
        else:
            replies = []
        allowed_bytes, largest_bytes = FrameLimits().reply_bytes(self._reply_bytes()), max(map(len, replies), default=0)
        if len(replies) > request_count or largest_bytes > allowed_bytes:
            self._say(
                f"the SuperNode of {self._party_of_node(node_id)} brings {len(replies)} replies of up to"
                f" {largest_bytes} bytes; {request_count} of {allowed_bytes} bytes are allowed: they are left aside"
            )
            return None
        return replies

    def _note_introduction(self, node_id: int, challenge: bytes, data: bytes) -> bool:
        """Notes which party a node is; False if it refused to say, so that it is asked again."""
        try:
            reply = codec.decode_reply(data, f"node {node_id}")
        except PeerFault as error:
            self._say(error.problem)
            return True
        if reply.WhichOneof("body") != "introduction":
            reason = "; ".join(
                printable(refusal_words) for refusal_words in (reply.refusal.problem, reply.refusal.remedy)
            )
            self._say(f"a SuperNode does not introduce itself: {reason}")
            return False
        node_introduction = reply.introduction
        party_name = node_introduction.name
        if self._identities is None:
            identity_key = node_introduction.identity
        else:
            identity_key = self._identities.get(party_name, b"")
        run_address = codec.flower_address(self._grid.run.run_id, node_id)
        try:
            verified(
                identity_key,
                codec.introduction_digest(challenge, run_address, node_introduction),
                node_introduction.signature,
            )
        except (InvalidSignature, ValueError):
            self._say(
                f"the SuperNode {node_id} introduces itself as {printable(party_name, 63)} and does not prove it with"
                " the key that this party has enrolled; left aside"
            )
            return True
        self._nodes[party_name] = node_id
        self._introductions[party_name] = data
        return True

    def _party_of_node(self, node_id: int) -> str:
        return next(
            (party_name for party_name, known_id in self._nodes.items() if known_id == node_id), f"node {node_id}"
        )
