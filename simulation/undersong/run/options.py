"""Options of simulations and comparisons. The commands and the library make them from one declaration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from undersong_common.program.declarations import Option

Engine = Literal["inprocess", "flower"]  # parties in this process, or Flower's simulation engine (on Ray)

if TYPE_CHECKING:
    import pandas

    FrameOrPath: TypeAlias = pandas.DataFrame | Path | str
else:
    FrameOrPath = Path  # The command line takes paths only.


@dataclass(frozen=True, kw_only=True)
class SimulationOptions:
    """Options of one simulation.

    Attributes:
        seed: fixes everything but noise, keys and masks.
        fresh: starts over: removes what the folder's last run wrote.
        engine: "flower" is Flower's simulation engine, for hundreds of parties.
        ray: the Ray cluster at this address embeds public texts where they are many, and writes what models in local
            folders write; "" begins Ray on this machine. Not with the engine "flower", which has Ray for itself.
        insecure_noise_seed: for tests only: reproducible noise; the output is marked as not private.
    """

    seed: Annotated[int, Option(help="Fixes everything but noise, keys and masks.", min=0)] = 0
    fresh: Annotated[bool, Option(name="--fresh", help="Start over: removes what the folder's last run wrote.")] = False
    engine: Annotated[Engine, Option(help="flower is Flower's simulation engine, for hundreds of parties.")] = (
        "inprocess"
    )
    ray: Annotated[
        str | None,
        Option(
            help='Spread the work over a Ray cluster: HOST:PORT, "auto", or "local" for Ray on this machine.',
            metavar="ADDRESS",
        ),
    ] = None
    insecure_noise_seed: Annotated[
        int | None, Option(help="TESTS ONLY: reproducible noise; the output is marked as not private.", min=0)
    ] = None


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions:
    """Options of one comparison: the grid, and where its cells are computed.

    Attributes:
        methods: NAME, "NAME:key=value+key=value", "METHOD@GENERATOR" (one generator alone) or "private-only".
        test: test set, labelled where the task has labels; None takes the task's ``evaluation.test``.
        epsilons: budgets; empty takes the task's.
        parties, records: numbers of parties and of private records; empty takes the task's.
        seeds: how many, counted from ``first_seed``, or which.
        baseline: reference of the paired differences; None keeps the table's, or takes the first method.
        out: folder of cells and tables. Further calls with the same task add to its table. None takes
            "OUTPUT.DIR-comparison" of the task.
        jobs: worker processes, each of which loads the models; 0 is one per core.
        ray: address of a Ray cluster, with the same files under the same paths, that computes the cells; "" for Ray on
            this machine, None for processes of this machine.
        fresh: forgets the folder's cells and its table.
        public_data: the private records are public, so their embeddings are kept on this disk.
        insecure_noise_seed: for tests only: reproducible noise.
    """

    methods: Annotated[
        Sequence[str],
        Option(
            help="NAME, NAME:key=value+key=value, NAME@GENERATOR, private-only, and, centralised (one trainer "
            "sees every record), dp-lora:model=FOLDER, dp-sgd:model=FOLDER, dp-sgd-classifier, ghost-classifier; "
            "commas between.",
            each=str,
            default="wasp,mixture,private-only",
        ),
    ] = ()
    test: Annotated[
        FrameOrPath | None,
        Option(help="Test set, labelled where the task has labels (else its evaluation.test).", metavar="FILE"),
    ] = None
    epsilons: Annotated[
        Sequence[float], Option(help="Budgets; inf adds no noise.", name="--epsilon", each=float, default="1,4,8")
    ] = ()
    parties: Annotated[Sequence[int], Option(help="Numbers of parties (else the task's).", each=int, default="")] = ()
    records: Annotated[
        Sequence[int],
        Option(help="Private records in all, about: one number, or one for each of --parties.", each=int, default=""),
    ] = ()
    seeds: Annotated[
        int | Sequence[int], Option(help="How many, counted from --first-seed.", type=int, default=20, min=1)
    ] = 3
    first_seed: Annotated[int, Option(min=0)] = 0
    baseline: Annotated[str | None, Option(help="Reference of the paired differences (else the table's).")] = None
    out: Annotated[
        Path | str | None, Option(help="Folder of cells and tables.", type=Path, default=Path("runs/comparison"))
    ] = None
    jobs: Annotated[int, Option(help="Worker processes; 0 is one per core.", default=0, min=0)] = 1
    ray: str | None = None  # The command has options of its own for it.
    fresh: Annotated[bool, Option(help="Forget the folder's cells.")] = False
    public_data: Annotated[bool, Option(help="The records are public: keep their embeddings on this disk.")] = False
    insecure_noise_seed: Annotated[
        int | None, Option(help="Reproducible noise: the cells are then private to nobody.", min=0)
    ] = None

    @property
    def every_seed(self) -> Sequence[int]:
        """The list of seeds that ``seeds`` names or, as a number, counts from ``first_seed``."""
        if isinstance(self.seeds, int):
            return range(self.first_seed, self.first_seed + self.seeds)
        return tuple(self.seeds)
