"""The operator's options and their default values, those of a new coordinator and of a run's plan among them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from undersong_common.program.declarations import Option
from undersong_common.program.owner import home_folder

HOME = "coordinator"  # folder of a coordinator, below the current one
BIND_HOST = "0.0.0.0"  # noqa: S104 - a coordinator listens on every address of its machine, where hospitals call it
METRICS = "127.0.0.1:9464"  # host:port of a coordinator's metrics and health
INVITATION_DAYS = 14.0
PATIENCE_S = 120.0  # longest wait for a party's answer to a request
TOKEN_DAYS = 90.0  # life of a token with which a script reads the console
KEEPALIVE_S = 20.0  # silence on a stream after which either side sends a ping
Head = Literal["auto", "linear", "mlp", "three-layer"]  # kinds of classifiers that are trained on frozen embeddings
HEADS: tuple[Head, ...] = ("auto", "linear", "mlp", "three-layer")


def public_cache_path(environment: Mapping[str, str]) -> Path:
    """File that keeps the embeddings of public texts between runs.

    It lies below $UNDERSONG_CACHE or $XDG_CACHE_HOME, else below ~/.cache.
    """
    cache_root = environment.get("UNDERSONG_CACHE") or environment.get("XDG_CACHE_HOME")
    folder = Path(cache_root) if cache_root else home_folder() / ".cache"
    return folder / "undersong" / "public-embeddings.sqlite"


OPERATOR = Option(help="Legal name of who asks; each hospital reads it first.")
BIND = Option(help="host:port to listen on, else every address at the port of --address; no party ever sees it.")
ADDRESS = Option(help="host:port by which parties reach it; repeat for several.", name="--address", type=list[str])
CONTACT = Option(help="A person there whom a hospital reaches, with a telephone number.")


@dataclass(frozen=True, kw_only=True)
class NewCoordinator:
    """The settings with which a coordinator's folder is made.

    Attributes:
        bind: host:port to listen on; "" for every address of this machine, at the port of the first of ``addresses``.
        metrics: host:port of metrics and health; "" for none.
        drill: True for rehearsals only; writes a task of invented texts to ``drill/task.toml`` in the folder.
        storage: connection string of an empty database that several machines share; "" for none.
        operator, contact: legal name of who runs it, and a person there with telephone number or address.
    """

    addresses: Annotated[Sequence[str], ADDRESS]
    name: Annotated[str, Option(help="The coordinator's name, as the parties read it.")] = "coordinator"
    bind: Annotated[str, BIND] = ""
    metrics: Annotated[str, Option(help='host:port of metrics and health over HTTP; "" for none.')] = METRICS
    drill: Annotated[
        bool, Option(name="--drill", help="For a rehearsal only: also writes a small task of invented texts.")
    ] = False
    storage: Annotated[
        str, Option(help="Connection string of an empty PostgreSQL database; without it, the folder is all.")
    ] = ""
    operator: Annotated[str, OPERATOR] = ""
    contact: Annotated[str, CONTACT] = ""


@dataclass(frozen=True)
class RunOptions:
    """Options of a run's plan.

    Attributes:
        name: name of the run, used once; None takes the task's name and ``suffix``, or without that
            epsilon and the date.
        parties: names of the parties; None takes everyone enrolled.
        seed: seed of everything but noise, keys and masks.
        patience_s: longest wait for a party before the run continues without it.
        insecure_noise_seed: tests only; the parties run with this seed, and the output is marked as not private.
    """

    name: Annotated[
        str | None, Option(help="The run's name, used once (else the task's name, epsilon and the date).")
    ] = None
    suffix: str | None = None
    parties: Annotated[
        Sequence[str] | None, Option(help="Names of the parties, separated by commas (else all enrolled).", each=str)
    ] = None
    seed: Annotated[int, Option(help="Fixes everything but noise, keys and masks.", min=0)] = 0
    patience_s: Annotated[
        float,
        Option(
            help="Seconds a request waits for a party before the run continues without it.", name="--patience", min=1
        ),
    ] = PATIENCE_S
    insecure_noise_seed: Annotated[
        int | None,
        Option(help="TESTS ONLY: the parties run with this seed; the output is marked as not private.", min=0),
    ] = None


RUN_OPTIONS = RunOptions()
