"""Watches the noise of an audit's parties, and compares it with everything that others know.

Noise of the right law that others can compute is no noise. Component 0 of a share must follow from its own secret seed
alone (``noise_own``), which never leaves. Two comparisons show that it does:

- *Reseeded machine.* A second machine has the same secrets and another seed of component 0. Both send the same
  messages. If both have the same noise, the noise follows from the messages, whatever the formula.
- *Recomputed.* Noise is drawn from each value of a party's messages, and from hashes of it. This also shows a secret
  seed that was public before the machine had it.

A share is also compared with its own first half, with other parties' shares and with those of earlier sums.
"""

import copy
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from scipy.stats import binom, norm

from undersong.auditing import noise_checks
from undersong_common.arrays import Bools, Float32, Int64
from undersong_common.privacy.stream import SEED_BYTES, KeyStream
from undersong_protocol.secagg import keys
from undersong_protocol.secagg.noise_share import (
    CHAIN_DOMAIN,
    SEED_DOMAIN,
    NoisePlan,
    NoiseSeeds,
    laplace_scale,
    remove_opened,
)
from undersong_protocol.secagg.parameters import Entropy, SumParameters
from undersong_protocol.secagg.party import PartyMachine
from undersong_protocol.secagg.state import PartyState
from undersong_protocol.secagg.transitions import SECRETS
from undersong_protocol.statistics.vectors import GridVector, NoisyVector
from undersong_protocol.wire.messages import secagg_pb2 as wire

LONGEST_RECOMPUTED = 1 << 16  # coordinates; longer sums are compared only with the reseeded machine
DOMAINS = {"a hash of ": b"", "a chain hash of ": CHAIN_DOMAIN, "a seed hash of ": SEED_DOMAIN}
LASTING = ", component 0"  # end of the name of a share's noise component 0, which no party can remove
RESEEDED = "something else than its own secret seed"
ADVERTISED = "a party's advert follows from the seed of its own noise"


@dataclass(frozen=True)
class Likeness:
    """Agreement of noise with what others could compute; likenesses of independent coordinates add up.

    Attributes:
        equal, coordinates: coordinates with the same integer, of how many.
        chance: largest probability of one integer under the planned law.
        product, square: of normal scores: sum of products, and sum of squares of what others could compute.
    """

    equal: int
    coordinates: int
    chance: float
    product: float
    square: float

    def __add__(self, addend: "Likeness") -> "Likeness":
        return Likeness(
            self.equal + addend.equal,
            self.coordinates + addend.coordinates,
            max(self.chance, addend.chance),
            self.product + addend.product,
            self.square + addend.square,
        )

    def of_integers(self) -> "Likeness":
        """Returns the likeness by equal integers alone: scores of draws that are compared in a chain are dependent."""
        return replace(self, product=0.0, square=0.0)

    def is_explained(self, alarm: float) -> bool:
        """Returns True where independent noise would agree so well with a chance of ``alarm`` at most."""
        is_too_equal = bool(binom.sf(self.equal - 1, self.coordinates, self.chance) < alarm / 2)
        return is_too_equal or abs(self.product) > float(norm.isf(alarm / 4)) * self.square**0.5


Evidence = TypeVar("Evidence", noise_checks.Shape, Likeness)


def add_evidence(totals: dict[str, Evidence], name: str, evidence: Evidence) -> None:
    """Adds evidence about noise to the total of that name."""
    if name in totals:
        totals[name] = totals[name] + evidence
    else:
        totals[name] = evidence


@dataclass(frozen=True, eq=False)
class NoiseDraw:
    """Noise of one law, as integers and as normal scores.

    Attributes:
        chance: largest probability of one integer under the law.
    """

    values: Int64
    scores: Float32
    chance: float

    @classmethod
    def of_law(cls, values: Int64, plan: NoisePlan, index: int | None) -> "NoiseDraw":
        """Scores ``values`` under component ``index`` of the plan, or under a whole share."""
        if plan.law == "laplace":
            law_parameters = laplace_scale(plan.sigma), 1.0 / plan.honest_survivors
            return cls(
                values,
                noise_checks.laplace_scores(values, *law_parameters),
                noise_checks.largest_laplace_mass(*law_parameters),
            )
        variance = float(plan.share_variance if index is None else plan.components[index])
        return cls(values, noise_checks.gaussian_scores(values, variance), (2.0 * np.pi * variance) ** -0.5 * 1.001)

    def part(self, places: slice) -> "NoiseDraw":
        return NoiseDraw(self.values[places], self.scores[places], self.chance)

    def likeness(self, candidate: "NoiseDraw") -> Likeness:
        """Likeness to a draw that others could compute, over the coordinates that both have."""
        length = min(len(self.values), len(candidate.values))
        guessed_scores = candidate.scores[:length].astype(np.float64)
        return Likeness(
            int((self.values[:length] == candidate.values[:length]).sum()),
            length,
            max(self.chance, candidate.chance),
            float(self.scores[:length] @ guessed_scores),
            float(guessed_scores @ guessed_scores),
        )


@dataclass(frozen=True, eq=False)
class Share:
    """One party's noise in one sum.

    Attributes:
        total: all components together.
        lasting: component 0, which is never removed from the sum; None where it is the whole share.
        zeros: True where the exact vector is 0, bool [d].
    """

    total: NoiseDraw
    lasting: NoiseDraw | None
    zeros: Bools

    @property
    def draws(self) -> Mapping[str, NoiseDraw]:
        return {"": self.total} | ({} if self.lasting is None else {LASTING: self.lasting})

    def under(self, plan: NoisePlan) -> "Share":
        """Returns the same integers, scored under the laws of another plan."""
        if self.lasting is None:
            lasting_component = None
        else:
            lasting_component = NoiseDraw.of_law(self.lasting.values, plan, 0)
        return Share(NoiseDraw.of_law(self.total.values, plan, None), lasting_component, self.zeros)

    def has_law_of(self, share: "Share") -> bool:
        """Returns True if both are of one law and length."""
        return (self.total.chance, len(self.zeros)) == (share.total.chance, len(share.zeros))


@dataclass(eq=False)
class NoiseWatch:
    """Collects the noise that the machines of :meth:`machine` add.

    Attributes:
        shares: noise share in the last attempt at a sum, by sum and party.
        likenesses: likeness of all shares to a value that others could compute, by the value's name.
        advertised: True if an advert followed from the seed of a party's own noise.
    """

    shares: dict[str, dict[str, Share]] = field(default_factory=dict)
    likenesses: dict[str, Likeness] = field(default_factory=dict)
    advertised: bool = False

    def machine(self) -> type[PartyMachine]:
        """Returns a class of machines that this object watches."""

        class Watched(_WatchedMachine):
            watch = self

        return Watched

    def add(self, query: str, party: str, share: Share) -> None:
        """Keeps a share and compares it with itself, with other parties' and with those of earlier sums."""
        share_by_party = self.shares.setdefault(query, {})
        earlier_shares = [
            sum_shares[party] for name, sum_shares in self.shares.items() if name != query and party in sum_shares
        ]
        # Each draw is compared with one earlier draw, so that its coordinates agree independently of one another.
        earlier_share = next((candidate for candidate in reversed(earlier_shares) if candidate.has_law_of(share)), None)
        neighbour_share = next(reversed(share_by_party.values()), None)
        for name, noise_draw in share.draws.items():
            half_length = len(noise_draw.values) // 2
            first_half = noise_draw.part(slice(half_length))
            second_half = noise_draw.part(slice(half_length, 2 * half_length))
            self.compare("its own first half" + name, second_half.likeness(first_half))
            if earlier_share is not None:
                self.compare(
                    "its noise in another sum" + name, noise_draw.likeness(earlier_share.draws[name]).of_integers()
                )
            if neighbour_share is not None:
                self.compare(
                    "another party's noise" + name, noise_draw.likeness(neighbour_share.draws[name]).of_integers()
                )
        share_by_party[party] = share

    def compare(self, name: str, likeness: Likeness) -> None:
        add_evidence(self.likenesses, name, likeness)


class _WatchedMachine(PartyMachine):
    """A machine that shows its noise to an audit, with a second one that has another seed of component 0."""

    watch: NoiseWatch
    _reseeded: PartyMachine

    @classmethod
    def open(
        cls,
        parameters: SumParameters,
        party_name: str,
        identity: Ed25519PrivateKey,
        entropy: Entropy,
        encapsulate: keys.Encapsulate = keys.encapsulate,
    ) -> "_WatchedMachine":
        random_blocks: list[bytes] = []

        def draw_and_record(count: int) -> bytes:
            random_blocks.append(entropy(count))
            return random_blocks[-1]

        machine = super().open(parameters, party_name, identity, draw_and_record, encapsulate)
        assert isinstance(machine, _WatchedMachine)
        random_blocks[SECRETS.index("noise_own")] = os.urandom(SEED_BYTES)
        replayed_blocks: Iterator[bytes] = iter(random_blocks)
        machine._reseeded = PartyMachine.open(
            parameters, party_name, identity, lambda _count: next(replayed_blocks), encapsulate
        )
        cls.watch.advertised |= machine._reseeded._state.advert != machine._state.advert
        return machine

    def _add_noise_share(self, grid: GridVector, state: PartyState) -> NoisyVector:
        noisy_vector = super()._add_noise_share(grid, state)
        plan = self._parameters.noise_plan
        if not plan.components:
            return noisy_vector
        root = state.secret("noise_root")
        removable_noise = np.zeros_like(grid.values)  # the removable components, with reversed sign
        if plan.removal:
            remove_opened(removable_noise, plan, 0, root)

        def score_lasting(vector: NoisyVector) -> NoiseDraw:
            return NoiseDraw.of_law(vector.values - grid.values + removable_noise, plan, 0)

        lasting_noise = score_lasting(noisy_vector)
        reseeded_state = copy.copy(state)
        reseeded_state.secrets = self._reseeded._state.secrets
        reseeded_noise = score_lasting(super()._add_noise_share(grid, reseeded_state))
        self.watch.compare(RESEEDED, lasting_noise.likeness(reseeded_noise))
        if len(grid.values) <= LONGEST_RECOMPUTED:
            for name, seed in _list_known_seeds(self._parameters, state, plan, root):
                seed_noise = plan.component_law(0).sample(KeyStream(seed), len(grid.values))
                self.watch.compare(name, lasting_noise.likeness(NoiseDraw.of_law(seed_noise, plan, 0)))
        total_draw = NoiseDraw.of_law(noisy_vector.values - grid.values, plan, None)
        party_share = Share(total_draw, lasting_noise if plan.removal else None, grid.values == 0)
        self.watch.add(self._parameters.query, self._parameters.name(self._index), party_share)
        return noisy_vector


def _list_known_seeds(
    parameters: SumParameters, state: PartyState, plan: NoisePlan, root: bytes
) -> Iterator[tuple[str, bytes]]:
    """Yields (name, seed) of each seed that follows from what a party sends or from what all parties know."""
    seed_by_name: dict[str, bytes] = {
        "the session id": parameters.sid,
        "the plan": parameters.manifest_hash,
        "the terms": parameters.terms,
        "the roster": parameters.roster_hash,
        "the adverts": state.adverts_hash,
        "the transcript": state.transcript,
        "the question": state.question,
        "the advert": state.advert,
    }
    advert: Any = wire.Advert.FromString(state.advert)
    seed_by_name |= {f"the advert's {field.name}": field_value for field, field_value in advert.ListFields()}
    seed_by_name |= {f"the reply to {stage.title}": answer.reply for (stage, _), answer in state.answered.items()}
    if plan.removal:
        noise_seeds = NoiseSeeds(bytes(SEED_BYTES), root)
        seed_by_name |= {
            f"chain value {step + 1}": noise_seeds.opening(plan, step) or b"" for step in range(plan.dropouts)
        }
    for name, known_bytes in seed_by_name.items():
        if len(known_bytes) == SEED_BYTES:
            yield name, known_bytes
        for prefix, domain in DOMAINS.items():
            yield prefix + name, hashlib.sha256(domain + known_bytes).digest()


def known_noise(likenesses: Mapping[str, Likeness], alarm: float) -> list[str]:
    """Returns the names of values from which parties' noise follows; any of sound noise with a chance of ``alarm``."""
    alarm_of_each = alarm / max(1, len(likenesses))
    explanations = [name for name, likeness in likenesses.items() if likeness.is_explained(alarm_of_each)]
    return explanations[: noise_checks.MOST_NAMED]
