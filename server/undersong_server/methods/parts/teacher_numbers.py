"""Number of teachers that a plan's queries need; a plan with too few is refused (docs/discriminator.md)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from undersong_common.errors import ConfigurationError
from undersong_protocol.agreement.plan import Privacy, Quorum, SumRequest, plan_sums

USEFUL = 10.0  # teachers per unit of sigma: with fewer the noise hides even clear majorities
FEWEST_QUERIES = 50  # that are worth proposing
FEWEST = 20  # teachers in all, where there is hardly any noise


@dataclass(frozen=True)
class TeacherNumbers:
    """The teachers of a plan.

    Attributes:
        asked: shards per party that the options name; 0 is as many as a useful answer needs.
        queries: r, on which each teacher votes.
        requests: the plan's private sums, "teachers" among them.
    """

    asked: int
    queries: int
    requests: Sequence[SumRequest]
    privacy: Privacy
    quorum: Quorum

    @cached_property
    def sigma(self) -> float:
        """Noise of each query's count, in votes."""
        return plan_sums(self.requests, self.privacy, self.quorum)["teachers"].sigma

    @property
    def per_party(self) -> int:
        if self.privacy.unit == "party":
            return 1  # one unit lies in one shard: all that a party has
        return self.asked or math.ceil(max(FEWEST, self.needed) / self.quorum.parties)

    @property
    def total(self) -> int:
        return self.quorum.parties * self.per_party

    @property
    def needed(self) -> int:
        """Teachers in all that a useful answer needs: sigma is at most a tenth of them."""
        return math.ceil(USEFUL * self.sigma)

    def check(self) -> None:
        """Raises ConfigurationError, with remedies, if noise hides the teachers' answers or a unit is overcharged."""
        if not math.isfinite(self.privacy.epsilon):
            return
        if self.privacy.norm_factor > 1:
            raise ConfigurationError(
                'privacy.user_contribution = "sum": a unit lies in one shard and changes one teacher, however many'
                f" records it has, and must not be charged {self.privacy.norm_factor} times",
                'set privacy.user_contribution = "mean"',
            )
        if self.total >= self.needed:
            return
        more = f"set method.teachers to {math.ceil(self.needed / self.quorum.parties)} (a party)"
        remedies = [more if self.privacy.unit != "party" else "raise privacy.epsilon"]
        fewer = math.floor(self.queries * (self.total / (USEFUL * self.sigma)) ** 2)
        if fewer >= FEWEST_QUERIES:
            remedies.append(f"lower method.queries to {fewer}")
        raise ConfigurationError(
            f"method.teachers: {self.total} teachers in all cannot answer {self.queries} queries at epsilon"
            f" {self.privacy.epsilon:g}: the noise has sigma {self.sigma:.1f} votes, and a useful answer needs"
            f" {self.needed} teachers (sigma at most a tenth of them)",
            ", ".join([*remedies, 'or set method.discriminator = "moments"']),
        )
