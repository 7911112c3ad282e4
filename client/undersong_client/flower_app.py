"""The party as a Flower ClientApp, which a SuperNode starts; it answers as the daemon does.

The SuperNode is started with ``--node-config 'party-folder="/path"'``, the folder that ``undersong-party init``,
``enroll``, ``data add`` and ``budget set`` made. Flower starts a process for every message, so what must outlive a
message lies in that folder (encrypted journal, ledger, outbox) and nothing in Flower's Context; and a process opens no
more than its message needs.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from undersong_client.cli.options import checkpoints_folder
from undersong_client.home import PartyHome
from undersong_common.errors import ConfigurationError, UndersongError
from undersong_protocol.wire import codec

if TYPE_CHECKING:
    from undersong_client.answering.pending import PendingReply

PARTY_FOLDER = "party-folder"
# A key of the run configuration. It names a folder that holds a party's folder for each partition.
SIMULATED_PARTIES = "simulated-parties"

app = ClientApp()


@app.query()  # type: ignore[untyped-decorator]  # flwr has no types
def answer(message: Message, context: Context) -> Message:
    """Lets the party answer a message of Flower's: one reply for each request, in order.

    A party that fails or is not ready refuses in words that hold no private data.
    """
    requests = requests_of(message)
    try:
        party_home = PartyHome(folder_of(context.node_config, context.run_config))
        # A simulation's parties share one machine and one owner: nobody times them.
        replies = answers(party_home, requests, address=address_of(context), paced=PARTY_FOLDER in context.node_config)
    except UndersongError as error:
        # The only unjournaled reply: sent when the party is not ready, in words without its paths.
        print(f"undersong-party: {error.problem}; {error.remedy}", flush=True)
        replies = [_not_ready()] * len(requests)
    except Exception as error:  # noqa: BLE001 - Flower would send its words, which may hold private data, to the SuperLink
        print(f"undersong-party: internal error {type(error).__name__}", flush=True)
        replies = [codec.refusal(UndersongError("internal")).SerializeToString()] * len(requests)
    return reply_to(message, replies)


def answers(home: PartyHome, requests: Sequence[bytes], *, address: str = "", paced: bool = True) -> list[bytes]:
    """Returns one reply per request, journaled in the outbox; [] while the party's people have paused it.

    Args:
        address: address of this SuperNode, which introductions sign.
        paced: True returns only at the next rung if a reply depends on records; all replies leave together.

    Raises:
        ConfigurationError, PrivacyRefusal: the folder cannot be used, or the party's daemon is running.
    """
    from undersong_client.answering.journaled import wait_for_rung

    start_s = time.monotonic()
    with home.running():
        if home.pause.exists():
            pending_replies = []
        else:
            pending_replies = _answer_requests(home, requests, address)
    # The wait comes after everything that the party held is freed, which takes longer the more records there are.
    if paced:
        wait_for_rung(start_s, max((pending_reply.first_rung_s for pending_reply in pending_replies), default=0.0))
    if home.pause.exists():
        return []
    return [pending_reply.reply if pending_reply.may_leave() else _not_ready() for pending_reply in pending_replies]


def _not_ready() -> bytes:
    refusal = codec.refusal(ConfigurationError("this party is not ready", "its people must look into its log"))
    return refusal.SerializeToString()


def _answer_requests(home: PartyHome, requests: Sequence[bytes], address: str) -> "list[PendingReply]":
    from undersong_client.answering.assemble import assemble
    from undersong_client.answering.journaled import JournaledParty

    checkpoint_folder = checkpoints_folder(home.path)
    assembled_party = assemble(home, checkpoints=checkpoint_folder, clock=time.time, one_message=True, address=address)
    journaled_party = JournaledParty(home, assembled_party)
    return [journaled_party.answer(request) for request in requests]


def requests_of(message: Message) -> list[bytes]:
    """Returns the serialised requests in a Flower message; [] if it carries none."""
    if codec.RECORD in message.content:
        return codec.batch(message.content[codec.RECORD], codec.REQUESTS)
    return []


def address_of(context: Context) -> str:
    """Returns the address of the SuperNode in whose process this runs (``codec.flower_address``)."""
    return codec.flower_address(context.run_id, context.node_id)


def reply_to(message: Message, replies: Sequence[bytes]) -> Message:
    """Returns the Flower message that carries ``replies`` to the coordinator."""
    return Message(RecordDict({codec.RECORD: ConfigRecord({codec.REPLIES: list(replies)})}), reply_to=message)


def folder_of(node_config: Mapping[str, Any], run_config: Mapping[str, Any]) -> Path:
    """Returns the party's folder, from the configuration of its own SuperNode.

    In Flower's simulation the run's configuration names several folders and the partition chooses among them. Only
    there may the coordinator's side name a folder. Raises ConfigurationError if no folder is named.
    """
    folder = node_config.get(PARTY_FOLDER)
    if isinstance(folder, str) and folder:
        return Path(folder)
    homes_folder, partition_id = run_config.get(SIMULATED_PARTIES), node_config.get("partition-id")
    if (
        isinstance(homes_folder, str)
        and homes_folder
        and isinstance(partition_id, int)
        and "num-partitions" in node_config
    ):
        home_paths = sorted(path.parent for path in Path(homes_folder).glob("*/settings.json"))
        if partition_id < len(home_paths):
            return home_paths[partition_id]
        raise ConfigurationError(
            f"{homes_folder}: holds {len(home_paths)} parties, and more SuperNodes are simulated",
            f"--num-supernodes {len(home_paths)}",
        )
    raise ConfigurationError(
        "the SuperNode does not say where this party's folder is",
        "start the SuperNode with --node-config 'party-folder=\"/path/of/the/party\"'",
    )
