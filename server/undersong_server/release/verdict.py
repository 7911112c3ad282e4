"""What ``undersong verify`` found, as a value, as JSON and in words; its strings are a stranger's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from undersong_common.plurals import counted
from undersong_common.printable import printable
from undersong_server.release.signature import PublisherSignature

REMEDY = "the files are not those that the run wrote: get a fresh copy from the coordinator"
MOST_SHOWN = 40  # faults or names on a screen; JSON has them all


@dataclass(frozen=True)
class Opened:
    """One private sum of the data set: who is in it and who signed for that."""

    name: str
    attempt: int
    survivors: tuple[str, ...]
    signers: tuple[str, ...]
    question: str


@dataclass(frozen=True)
class Verdict:
    """What a data set cost, recomputed.

    Attributes:
        epsilon, delta: of the whole data set for any one privacy unit at any party; inf where it is not private.
        promised: epsilon of the signed manifest.
        spent: epsilon by party, from its final receipt; one ``without_receipt``, or whose receipt does not end the run,
            has the price of the whole plan, for papers that are missing say nothing.
        alone: the largest epsilon of any party against everyone else together: of every vector that left it, with its
            own share of the noise. An attempt that is void counts, for whoever made the other parties signed for that.
        voided: how many vectors left and are void by the parties' word.
        faults: everything that does not hold, in words; the figures mean nothing unless this is empty.
        insecure: the noise came from a fixed seed, by the data set's own word.
        signature: the coordinator that signed the papers and the hashes of the files; None where nobody did.
        confirmed: its fingerprint is the one that the caller has stated.
        simulated: every party's key signed the papers and the hashes of the files, so one program played all parties.
        known: parties whose keys are certified by that signature, or have the fingerprint that the caller has stated.
        unchecked: files of the data set that are not there.
        outside: what lies in the folder and no paper speaks of, by name.
    """

    run: str
    manifest: str
    epsilon: float
    delta: float
    promised: float
    unit: str
    parties: tuple[str, ...]
    spent: Mapping[str, float]
    alone: float
    voided: int
    without_receipt: tuple[str, ...]
    opened: tuple[Opened, ...]
    unopened: tuple[str, ...]
    faults: tuple[str, ...]
    insecure: bool
    signature: PublisherSignature | None
    confirmed: bool
    known: tuple[str, ...]
    simulated: bool
    unchecked: tuple[str, ...]
    outside: tuple[str, ...]

    @property
    def strangers(self) -> tuple[str, ...]:
        """Parties of which nothing shows that they are who they are called."""
        return tuple(party for party in self.parties if party not in self.known)

    @property
    def holds(self) -> bool:
        """Whether everything fits together, and is what it claims to be.

        A federation's has to be the stated coordinator's and its enrolled parties'; a simulation claims no hospital.
        """
        return not self.faults and (self.simulated or (self.confirmed and not self.strangers))

    def to_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "manifest": self.manifest,
            "kind": "simulation" if self.simulated else "federation",
            "holds": self.holds,
            "consistent": not self.faults,
            "coordinator_confirmed": self.confirmed,
            "parties_confirmed": list(self.known),
            "faults": list(self.faults),
            "private": not self.insecure and math.isfinite(self.epsilon),
            "epsilon": finite(self.epsilon),
            "delta": self.delta,
            "promised_epsilon": finite(self.promised),
            "epsilon_if_all_others_collude": finite(self.alone),
            "void_vectors": self.voided,
            "unit": self.unit,
            "parties": list(self.parties),
            "coordinator": None if self.signature is None else asdict(self.signature),
            "epsilon_by_party": {party: finite(spent) for party, spent in self.spent.items()},
            "without_receipt": list(self.without_receipt),
            "sums": [
                {
                    "name": opened.name,
                    "attempt": opened.attempt,
                    "survivors": list(opened.survivors),
                    "signers": list(opened.signers),
                }
                for opened in self.opened
            ],
            "planned_but_not_opened": list(self.unopened),
            "files_not_there": list(self.unchecked),
            "files_outside": list(self.outside),
        }

    def lines(self) -> list[str]:
        """The verdict as a person reads it."""
        if self.faults:
            shown = [f"  {printable(fault, 600)}" for fault in self.faults[:MOST_SHOWN]]
            return ["NOT VERIFIED:", *shown, *_rest(self.faults), REMEDY]
        whole = "every signature, charge and statement holds" if self.holds else "its papers fit together"
        found = [
            *self._doubts(),
            f"run '{printable(self.run)}'",
            f"manifest {self.manifest[:16]}...: {whole}",
            f"epsilon {self.epsilon:.6g} at delta {self.delta:g} for one {self.unit}"
            f" (promised: {self.promised:.6g}), add/remove neighbours",
        ]
        if math.isfinite(self.alone):
            found.append(f"epsilon {self.alone:.6g} against the coordinator and all other parties together")
        if self.voided:
            found.append(
                f"void, by the parties' word: {self.voided} vectors that had left; only the second figure counts them"
            )
        if self.confirmed and self.signature is not None:
            found.append(f"signed by the coordinator '{printable(self.signature.name, 63)}', as you stated it")
        found.append(f"took part: {', '.join(self.parties)}")
        for opened in self.opened:
            away = sorted(set(self.parties) - set(opened.survivors))
            found.append(
                f"  the sum of {counted(len(opened.survivors), 'party', 'parties')}"
                + (f", without {', '.join(away)}" if away else "")
                + f"; {len(opened.signers)} signed for it: '{printable(opened.name)}'"
            )
        if self.unopened:
            found.append(f"planned and never opened: {_names(self.unopened)}")
        if self.without_receipt:
            found.append(
                f"no final receipt of {', '.join(self.without_receipt)}: priced as if the whole plan was spent"
            )
        if self.unchecked:
            found.append(f"not here, so not compared: {', '.join(self.unchecked)}")
        if self.outside:
            found.append(f"outside the papers, so of unknown origin: {_names(self.outside)}")
        if self.insecure:
            found.append("NOT PRIVATE: by its own word the noise came from a fixed seed (tests)")
        elif math.isinf(self.epsilon):
            found.append("NOT PRIVATE: the run was made without noise")
        return found

    def _doubts(self) -> list[str]:
        """What nothing here shows, first of all; empty where everything of a federation is confirmed."""
        if self.simulated:
            return [
                "SIMULATION, CONFIRMED: one program held every party's key and signed these files and papers with all.",
                "  No hospital and no coordinator stands behind it: who ran it, and on which records, no paper shows.",
            ]
        if self.holds:
            return []
        found = ["NOT CONFIRMED: the papers fit together, and nothing shows yet who made them."]
        if self.signature is None:
            found += [
                "  No coordinator has signed them, nor a simulation. Whoever made this folder may have invented",
                "  its hospitals, with their keys, signatures and receipts, and may have changed every text.",
            ]
        elif not self.confirmed:
            found += [
                f"  A coordinator with the fingerprint {self.signature.fingerprint} has signed them;",
                f"  it calls itself '{printable(self.signature.name, 63)}'. Anybody can make one of that name:",
                "  have one of its hospitals tell you the true fingerprint, and pass it by --fingerprint.",
            ]
        if self.known:
            found.append(f"  By their fingerprints these are who they are called: {', '.join(self.known)}.")
        if self.strangers:
            found.append(f"  Only their names are known of {', '.join(self.strangers)}.")
        return found


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _names(names: Sequence[str]) -> str:
    """Names of a stranger's choice, each in quotes, in letters that look like no other ones."""
    shown = [f"'{printable(name.encode('ascii', 'backslashreplace').decode(), 120)}'" for name in names[:MOST_SHOWN]]
    return ", ".join(shown) + "".join(_rest(names))


def _rest(names: Sequence[str]) -> list[str]:
    return [f"  and {len(names) - MOST_SHOWN} more"] if len(names) > MOST_SHOWN else []
