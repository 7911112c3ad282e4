"""A hospital's folder as its commands make it, and the embedder that needs no weights."""

import functools
import json
import tempfile
from pathlib import Path

from tests.doubles.authority import Authority
from tests.doubles.parties import DIMENSION, EMBEDDER, embed
from tests.doubles.typed import typed
from undersong_client.cli.app import app
from undersong_client.consent import policy_file
from undersong_client.home import PartyHome
from undersong_common.models.embedding import Embedder, TextLengths


class HashedEmbedder(Embedder):
    """An embedder without weights."""

    dimension = DIMENSION

    def __init__(self, *_: object) -> None:
        super().__init__(Path("nowhere"), EMBEDDER)
        self.asked: list[int] = []

    def lengths(self, texts):
        counts = [len(text.split()) for text in texts]
        return TextLengths(len(texts), sum(count > 50 for count in counts), sum(count > 400 for count in counts))

    def encode(self, texts, progress=None):
        self.asked.append(len(texts))
        if progress is not None:
            progress(len(texts), len(texts))
        return embed(texts)


def command(*arguments: object, code: int | None = 0) -> str:
    """Standard output of an ``undersong-party`` command that ends with ``code``; the words of its error otherwise.

    ``code`` None: however it ends.
    """
    done = typed(app, *arguments, standalone_mode=False)
    found = getattr(done.exception, "exit_code", done.exit_code)
    if not found and isinstance(done.return_value, int):
        found = done.return_value
    assert code is None or found == code, f"{arguments}: exit code {found}\n{done.output}\n{done.exception!r}"
    return f"{done.exception}" if done.exception is not None else done.stdout


def set_up(home: Path, *commands: tuple[object, ...]) -> None:
    """Makes a party's folder by commands that name no other folder, ``init`` first.

    A process types the same commands once. Every further folder of that name is a copy, with the same keys.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path, mode, content in _written_files(tuple(tuple(map(str, words)) for words in commands)):
        copy = home / path
        if content is None:
            copy.mkdir()
        else:
            copy.write_bytes(content)
        copy.chmod(mode)


@functools.cache
def _written_files(commands: tuple[tuple[str, ...], ...]) -> list[tuple[Path, int, bytes | None]]:
    """Returns (path, mode, content) of what commands write into a party's folder; a folder has no content."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "party"
        for words in commands:
            command(*words, "--home", home)
        return [
            (path.relative_to(home), path.stat().st_mode, path.read_bytes() if path.is_file() else None)
            for path in sorted(home.rglob("*"))
        ]


def write_notes(path: Path, records: int = 12, labels=("good", "bad"), start: int = 0) -> Path:
    rows = [
        {"text": f"private note {number}", "label": labels[number % len(labels)], "patient": f"patient {number // 2}"}
        for number in range(start, start + records)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def joined(
    folder: Path,
    authority: Authority,
    name: str = "alpha",
    *,
    address: str = "localhost:7443",
    notes: Path | None = None,
    approval: str = "each",
    **grant,
) -> Path:
    """A party that has done everything but ``run``; its folder."""
    from undersong_protocol.agreement.enrolment import EnrolmentRequest

    home = folder / name
    package, request, answer = (folder / f"{name}.{kind}" for kind in ("package", "request", "grant"))
    package.write_bytes(authority.package_bytes(name, address))
    set_up(
        home,
        ("init", name),
        ("budget", "set", "--epsilon", 4, "--delta", "1e-4", "--per-run", 2),
        ("policy", "set", "--question", "all", "--approval", approval),
        ("policy", "set", "--minimum-parties", 1),
    )
    fingerprint = authority.package(name).fingerprint
    command("enroll", package, "--fingerprint", fingerprint, "--request-out", request, "--home", home)
    answer.write_bytes(authority.grant(EnrolmentRequest.parse(request.read_bytes()), **grant))
    command("enroll", "--grant", answer, "--home", home)
    notes = notes or write_notes(folder / f"{name}.jsonl")
    command("data", "add", notes, "--label-field", "label", "--user-field", "patient", "--home", home)
    return home


def sign_former_trust(home: Path, *names: str) -> bytes:
    """Signs the policy with trust in statistics of other packages, as release 0.3 did; returns the file's bytes."""
    party_home = PartyHome(home)
    trust = {policy_file.FORMER_TRUST: [f"{name}={'a' * 64}" for name in names]}
    policy_file.write_fields(party_home, policy_file.read_fields(party_home) | trust)
    return party_home.policy.read_bytes()
