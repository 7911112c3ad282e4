"""Interface through which a run reports progress: phases with a count, from which a display estimates the rest."""

from collections.abc import Sequence


class Progress:
    """A display of phases, each with ``done`` of ``total`` units. This one shows nothing; subclasses show something."""

    def update(self, phase: str, done: int, total: int) -> None:
        """Reports a phase; a later call for the same phase replaces its figures."""

    def say(self, message: str) -> None:
        """Shows one line that stays on the screen, of public words only."""

    def await_people(self, parties: Sequence[str], approved: Sequence[str], words: str) -> None:
        """Reports that the people of ``parties`` have to decide and those of ``approved`` have.

        Args:
            words: the plan's, which the hospitals compare by telephone.
        """
        self.update(f"approval of {', '.join(parties)}", len(approved), len(parties) + len(approved))


Silent = Progress  # for tests, ``--json`` and ``--quiet``
