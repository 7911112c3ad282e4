"""The attempts that a decision of people has ended, in a party whose daemon does not run: it would end them itself."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from undersong_client.home import PartyHome
from undersong_common.errors import ConfigurationError


def end_now(home: PartyHome, checkpoints: Path) -> None:
    """Destroys the secrets of attempts that will not go on; a daemon that runs does so within a second.

    Args:
        checkpoints: the user's folder for heads of ledgers.

    Raises ConfigurationError and PrivacyRefusal where keys, policy or journal are missing or damaged.
    """
    if home.is_running or not any(home.attempts.glob("*.key")):
        return
    from undersong_client.answering.assemble import assemble_for_a_message
    from undersong_client.answering.journaled import JournaledParty
    from undersong_client.storage.outbox import Outbox

    with ExitStack() as held:
        try:
            held.enter_context(home.running())
        except ConfigurationError:
            return  # a daemon, or a message over Flower, has just begun, and looks after it itself
        assembled = assemble_for_a_message(home, checkpoints=checkpoints, clock=time.time)
        JournaledParty(home, assembled, Outbox(home.outbox)).look_after()
