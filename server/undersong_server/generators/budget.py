"""Limits of tokens and dollars: a call reserves its worst case before it is made, and settles what it took."""

from __future__ import annotations

import threading

from undersong_server.generators.interface import BudgetExhausted


class CallBudget:
    """The limits of one generator over one run, shared by its threads."""

    def __init__(self, name: str, tokens: int | None, price_usd: float | None) -> None:
        """A limit of None is none. ``name`` is the generator's, for messages."""
        self._name = name
        self._limits = (float("inf") if tokens is None else tokens, float("inf") if price_usd is None else price_usd)
        self._spent = [0.0, 0.0]
        self._reserved = [0.0, 0.0]
        self._calls = 0
        self._changed = threading.Condition()

    @property
    def spent(self) -> tuple[int, float]:
        """(tokens, US dollars) of settled calls."""
        with self._changed:
            return int(self._spent[0]), self._spent[1]

    def reserve(self, tokens: int, price_usd: float) -> None:
        """Reserves the worst case of one call; waits where it would fit once calls in flight have settled.

        Raises:
            BudgetExhausted: the call could exceed a limit even if the calls in flight were free.
        """
        with self._changed:
            while True:
                wanted = (tokens, price_usd)
                if all(
                    spent + reserved + want <= limit
                    for spent, reserved, want, limit in zip(
                        self._spent, self._reserved, wanted, self._limits, strict=True
                    )
                ):
                    break
                if self._calls == 0 or any(
                    spent + want > limit for spent, want, limit in zip(self._spent, wanted, self._limits, strict=True)
                ):
                    raise BudgetExhausted(self._problem(tokens, price_usd), self._remedy())
                self._changed.wait()
            self._reserved[0] += tokens
            self._reserved[1] += price_usd
            self._calls += 1

    def settle(self, reserved: tuple[int, float], took: tuple[int, float]) -> None:
        """Gives a reservation back and records what the call took; (0, 0.0) where it was not billed."""
        with self._changed:
            self._calls -= 1
            for kind in (0, 1):
                # Exactly zero when no call is in flight: rounding of dollars must not accumulate.
                self._reserved[kind] = self._reserved[kind] - reserved[kind] if self._calls else 0.0
                self._spent[kind] += took[kind]
            self._changed.notify_all()

    def charge(self, tokens: int, price_usd: float) -> None:
        """Records what an earlier process spent."""
        with self._changed:
            self._spent[0] += tokens
            self._spent[1] += price_usd

    def _problem(self, tokens: int, price_usd: float) -> str:
        spent = f"{int(self._spent[0])} tokens"
        limits, worst = [], f"{tokens} tokens"
        if self._limits[0] < float("inf"):
            limits.append(f"token_budget {int(self._limits[0])}")
        if self._limits[1] < float("inf"):
            limits.append(f"price_budget_usd {self._limits[1]:g}")
            spent += f" and ${self._spent[1]:.4f}"
            worst += f" and ${price_usd:.4f}"
        return (
            f"generator {self._name}: the next call (at most {worst}) could exceed {' or '.join(limits)}; "
            f"spent so far: {spent}"
        )

    def _remedy(self) -> str:
        return "raise the budget and run the same command again (what was answered is kept), or ask for fewer samples"
