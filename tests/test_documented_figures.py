"""The figures that the pages promise are those of the programs: whoever changes one changes the other, knowingly."""

import math
from pathlib import Path

import pytest

from undersong_client import home
from undersong_client.answering import checks, computing_process, party
from undersong_client.consent import approvals, trust
from undersong_client.link import daemon
from undersong_client.records import sources
from undersong_client.storage import attempts, own_figures, public_blocks
from undersong_common.pages import accounts, duties, frame, oidc, store, stream
from undersong_common.privacy import ledger, noise
from undersong_common.program import configuration, notices
from undersong_common.text import row_files, table
from undersong_protocol import limits
from undersong_protocol.agreement import plan
from undersong_protocol.secagg import drawn, graph, keys, party_graphs
from undersong_protocol.statistics import histogram, interface, terms
from undersong_protocol.wire import framing, public
from undersong_server.coordinator import gate, grpc_server, parties, service
from undersong_server.database import interface as database
from undersong_server.database import lease, postgres
from undersong_server.federation import exchange
from undersong_server.runs.task import FederationSection

DOCS = Path(__file__).parents[1] / "docs"
GATE: gate.ConnectionLimits[object] = gate.ConnectionLimits()
FRAMES = framing.FrameLimits()
MIB = 2**20


def spaced(number: float) -> str:
    return f"{int(number):,}".replace(",", " ")


def in_words(number: int) -> str:
    return {3: "three", 8: "eight", 10: "ten"}.get(number, str(number))


FIGURES = [
    # How large a run may be.
    ("operations", f"| {spaced(limits.LARGEST_PARTIES)}; {spaced(limits.LARGEST_SUMS)}; "),
    ("operations", f"{spaced(limits.LARGEST_PARTIES_TIMES_SUMS)} |\n"),
    ("operations", f"| {spaced(limits.LARGEST_LABELS)}; 2^{math.log2(limits.LARGEST_DIMENSION):g}; "),
    ("operations", f"; {limits.LARGEST_SPARE_ATTEMPTS} |\n"),
    ("operations", f"Laplace noise or subsampling | {limits.LARGEST_MECHANISMS} |"),
    ("operations", f"| the manifest | {limits.LARGEST_MANIFEST_BYTES / MIB:g} MiB |"),
    ("operations", f"| {FRAMES.message_bytes / MIB:g} MiB; {public.LARGEST_BLOCK_BYTES / MIB:g} MiB |"),
    ("operations", f"| {spaced(public.LARGEST_TEXTS)}; {public.LONGEST_TEXT_BYTES / 1024:g} KiB; "),
    ("operations", f"; {public.LARGEST_TEXTS_BYTES / MIB:g} MiB |\n"),
    ("operations", f"| 2^{math.log2(public.LARGEST_INPUT_ROWS):g}; 2^{math.log2(public.LARGEST_INPUT_NUMBERS):g}; "),
    ("operations", f"; {public.LARGEST_INPUT_TEXTS_BYTES / MIB:g} MiB |\n"),
    ("operations", f"| {public_blocks.DISK_BYTES / 2**30:g} GiB; those read last stay |"),
    # When a vector leaves, and how its noise is made.
    ("privacy", f"not below {limits.FIRST_S * 1000:g} ms"),
    ("privacy", f"at most log2({limits.LOOKS}) = {limits.bits():.1f} bits per sum"),
    ("privacy", f"at least {noise.SMALLEST_SHARE_SIGMA:g} integer units of standard deviation"),
    ("privacy", f"Counts are scaled by {interface.COUNT_SCALE} and"),
    ("privacy", f"sigma_eff = sqrt((sum over honest survivors of sigma_i^2) - {noise.ROUNDING_VARIANCE})"),
    ("lying-party", f"With `max_records = {plan.Privacy(1.0, 1e-5).max_records}`"),
    # The graphs of the masked sum, and its attempts.
    ("secagg", f"Above {graph.COMPLETE_UP_TO} parties, up to {spaced(drawn.MERKLE_ABOVE)}"),
    ("secagg", f"degree (at most {spaced(graph.LARGEST_DEGREE)})"),
    ("secagg", f"2^-{graph.SECRECY_BITS} (secrecy) and 2^-{graph.RECOVERY_BITS} (recovery)"),
    ("secagg", f"The keys themselves ({keys.KEM_KEY_BYTES} bytes each)"),
    ("secagg", f"ciphertext ({keys.CIPHERTEXT_BYTES} bytes)"),
    ("secagg", f"({in_words(party_graphs.ROLLS)} at most)"),
    (
        "secagg",
        f"{in_words(attempts.FREE_ATTEMPTS).capitalize()} attempts at a sum may follow each other, then one a minute",
    ),
    ("secagg", f"At most {in_words(ledger.VOIDED_VECTORS)} times per sum"),
    # What one record's row may cost.
    ("threat-model", f"A term has at most {terms.LONGEST_TERM} words"),
    ("threat-model", f"{terms.LARGEST_PHRASES} phrases, {terms.MOST_LENGTHS} lengths and {histogram.MOST_ATTRIBUTES}"),
    (
        "threat-model",
        f"workbook may hold {row_files.INFLATED_BYTES / MIB:g} MiB, or {row_files.INFLATION} times",
    ),
    ("hospital", f"A text above {table.LARGEST_TEXT_BYTES / MIB:g} MiB is left out"),
    ("threat-model", f"at most {configuration.LARGEST_FILE_BYTES / 1024:g} KiB and {configuration.MOST_LEVELS} levels"),
    # A standby.
    ("federation", f"renews a lease of {database.LEASE_S:g} seconds in the database"),
    ("federation", f"once it has reached no database for {lease.LOST_S:g} seconds"),
    ("federation", f"a statement after {postgres.SILENT_S:g} of silence"),
    # The coordinator's port.
    ("federation", f"opens connections faster than {GATE.per_second:g} a second"),
    ("federation", f"one of {GATE.most_unauthenticated} places, {GATE.per_source} from one address, "),
    ("federation", f", {gate.HANDSHAKE_S:g} s in all"),
    ("federation", f"at most {GATE.per_party} at once"),
    ("federation", f"{parties.RENEWALS_AN_HOUR} an hour and {parties.VALID_CERTIFICATES} valid ones at most"),
    ("federation", f"waits `run plan --patience` seconds ({exchange.STAGE_TIMEOUT_S:g})"),
    ("threat-model", f"that reads nothing ({spaced(framing.LONGEST_QUEUE)} frames)"),
    ("threat-model", f"the newest {approvals.MOST_PENDING} are kept"),
    ("threat-model", f"waits {daemon.Backoff().first_s:g} s at least where a coordinator tells it"),
    # The pages.
    ("console", f"within {accounts.LINK_S / 60:g} minutes"),
    ("console", f"after {accounts.IDLE_S / 60:g} minutes without use and after {accounts.SESSION_S / 3600:g} hours"),
    ("console", f"at most {in_words(stream.MOST_OF_SESSION)} live screens"),
    ("threat-model", f"after {accounts.FAILURES} failures, and a source after {accounts.SOURCE_FAILURES}"),
    ("threat-model", f"first {accounts.LONGEST_NAME} characters"),
    ("threat-model", f"Without a session {frame.LARGEST_OPEN_BODY_BYTES / 1024:g} KiB of a body are read, "),
    ("threat-model", f"are read, with one {frame.LARGEST_BODY_BYTES / MIB:g} MiB"),
    ("threat-model", f"tries of a source and {accounts.TRIES_AT_ONCE} in all may wait"),
    ("threat-model", f"asked by {oidc.MOST_ASKING} requests at a time"),
    ("threat-model", f"ends {frame.PATIENCE_S:g} s after its request"),
    ("threat-model", f"Beyond {frame.MOST_CONNECTIONS} the one that has waited longest"),
]
"""Page and words, made from the programs' figures."""


# A name that held the figure would be gone with it, and tests.planted looks for the test that failed.
@pytest.mark.parametrize(("page", "words"), FIGURES, ids=[f"{page} {place}" for place, (page, _) in enumerate(FIGURES)])
def test_documentation_page_states_the_figure_that_the_program_has(page: str, words: str) -> None:
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    if not words.endswith("\n"):
        text = " ".join(text.split())
    assert words in text


def test_figures_that_pages_write_in_words_equal_the_program_s() -> None:
    assert sources.LOST_SHARE == 20  # hospital.md: "If more than one in twenty rows or documents are not read"
    assert daemon.BUDGET_LOW == 0.1  # hospital.md: "less than a tenth of the budget is left"
    assert notices.EXPIRES_SOON_S == 14 * 86400.0  # hospital.md: "the certificate expires within two weeks"
    assert home.ABANDONED_S == 7 * 86400.0  # threat-model.md: "seven days after the attempt was begun"
    assert party.EPOCH_SILENCE_S == 86400.0  # federation.md: "an epoch that it has not heard for a day"
    assert checks.EPOCH_AHEAD_S == database.AHEAD_S == 86400  # federation.md: "More than a day ahead"
    assert lease.RENEW_S == 1.0  # federation.md: "in the database every second"
    assert accounts.FAILURES_S == 5 * 60.0  # threat-model.md: "wait for five minutes"
    assert accounts.SOURCE_TRIES_AT_ONCE == 5  # threat-model.md: "five tries of a source"
    assert duties.DAY_S == 24 * 3600.0  # threat-model.md: "is none of the two for a day"
    assert store.ACTION_KEPT_S >= 12 * 3600.0  # console.md: "sent twice, it is done once", for a session's life
    assert trust.RENEW_PART == 3  # hospital.md: "when a third of their time is left"
    assert parties.RENEWABLE_SHARE == 0.5  # federation.md: "when half of the life of the one it shows is over"
    assert service.RENEW_BEFORE_DAYS == 30  # federation.md: "a new one is made a month before"
    assert gate.QUIET_S == 3600.0  # federation.md: "logged once an hour and source"
    assert attempts.ATTEMPT_EVERY_S == 60.0  # secagg.md: "then one a minute"
    assert grpc_server.REVIEW_S == 1.0  # threat-model.md: "is repeated after a second"
    assert own_figures.LARGEST_DELTA == 1e-5  # hospital.md: "--delta 1e-5"
    assert FederationSection().post_quantum is True  # secagg.md: "it is on unless the task says otherwise"
    assert computing_process.LESS_PRIORITY > 0  # threat-model.md: "has a lower priority than the one that answers"
