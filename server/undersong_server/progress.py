"""Interface through which a run reports its progress; a phase is a kind of work, such as "generation"."""

from collections.abc import Sequence


class Progress:
    """A display of how far each phase is: ``done`` of ``total`` units. This class shows nothing; its subclasses do."""

    def update(self, phase: str, done: int, total: int) -> None:
        """Reports that ``done`` of ``total`` units of ``phase`` are done; a later call replaces its figures."""

    def say(self, message: str) -> None:
        """Shows one line that stays on the screen, of public words only."""

    def await_people(self, parties: Sequence[str], approved: Sequence[str], words: str) -> None:
        """Reports that the people of ``parties`` have to decide and those of ``approved`` have.

        Args:
            words: the words that stand for the plan's hash; the hospitals compare them by telephone.
        """
        self.update(f"approval of {', '.join(parties)}", len(approved), len(parties) + len(approved))


Silent = Progress  # the display that shows nothing: for tests, ``--json`` and ``--quiet``
