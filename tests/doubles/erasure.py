"""What whoever holds a party's folder and its store key can still read of an attempt's secrets."""

import base64
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from undersong_client import keys
from undersong_client.answering import party as party_module
from undersong_client.home import PartyHome
from undersong_client.storage.attempts import COINS_PURPOSE
from undersong_client.storage.outbox import Outbox
from undersong_client.storage.store import Store
from undersong_protocol.secagg.noise_share import add_noise
from undersong_protocol.secagg.parameters import Entropy
from undersong_protocol.secagg.party import PartyMachine
from undersong_protocol.secagg.transitions import SECRETS
from undersong_protocol.wire.messages import secagg_pb2 as wire

OF_PEERS = ("agreed", "self_share", "mask_share")
_NONCE_BYTES = 12
_COMPARED_BYTES = 360
"""The beginning of a sealed value, in which the machine's secrets stand. SQLite keeps so much of it in one piece."""


class Secrets:
    """Everything of a party that must not outlive an attempt, and every value that was ever sealed into a journal."""

    def __init__(self, party: str) -> None:
        self._party = party
        self.named: dict[str, bytes] = {}
        self._sealed: set[bytes] = set()

    def entropy(self, purpose: str) -> Entropy:
        """The operating system's, remembered under the attempt's name and the secret's."""
        attempt = purpose.removesuffix(COINS_PURPOSE)
        names = iter(SECRETS if attempt == purpose else ("coins",))

        def drawn(count: int) -> bytes:
            value = os.urandom(count)
            self.named[f"{attempt} {next(names)}"] = value
            return value

        return drawn

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Remembers the exact vectors, their noise, what is agreed with peers or held for them, and what is sealed."""
        real_sealed, real_grid, real_snapshot = Store._seal, party_module.Party._compute_grid, PartyMachine.snapshot

        own: list[Any] = []

        def sealed(store: Store, key: str, value: bytes, cipher: Any) -> bytes:
            self._sealed.add(value)
            return real_sealed(store, key, value, cipher)

        def grid(party: party_module.Party, *arguments: Any) -> Any:
            made = real_grid(party, *arguments)
            if party.name == self._party:
                self._vector("exact vector", made.values)
                own.append(made)
            return made

        def noise(vector: Any, *arguments: Any) -> Any:
            made = add_noise(vector, *arguments)
            if any(vector is each for each in own):
                self._vector("noise", made.values - vector.values)
                self._vector("noisy vector", made.values)
            return made

        def snapshot(machine: PartyMachine, **options: Any) -> bytes:
            made, parameters = real_snapshot(machine, **options), machine._parameters
            for peer in wire.Snapshot.FromString(made).peers if parameters.name(machine._index) == self._party else ():
                for field in OF_PEERS:
                    if value := getattr(peer, field):
                        name = f"attempt/{parameters.query}/{parameters.attempt} {field} of {peer.party}"
                        self.named[name] = value
            return made

        with (
            patch.object(PartyMachine, "snapshot", snapshot),
            patch.object(Store, "_seal", sealed),
            patch.object(party_module.Party, "_compute_grid", grid),
            patch("undersong_protocol.secagg.party.add_noise", noise),
        ):
            yield

    def _vector(self, name: str, values: np.ndarray) -> None:
        assert values.any(), "a vector of zeros cannot be looked for"
        for dtype in ("int64", "int32", "uint32"):
            self.named[f"{name}, {dtype}"] = values.astype(dtype).tobytes()

    def found(self, folder: Path, home: Path) -> set[str]:
        """The names of the secrets that some file below ``folder`` holds: as it is, or opened with the store's key.

        Opened is whatever lies at any offset of any file, so that rows, free pages and the write-ahead log are all
        looked into, and then what opens with the keys of compartments that were found.
        """
        files = [path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()]
        names = {name for name, secret in self.named.items() if any(_holds(file, secret) for file in files)}
        known, used = {keys.secret(PartyHome(home), "store")}, set[bytes]()
        known |= {value for value in self._sealed if len(value) == 32 and any(value in file for file in files)}
        while known - used:
            key = (known - used).pop()
            used.add(key)
            for value in self._openable(files, key):
                names |= {name for name, secret in self.named.items() if secret in value}
                known |= {value} if len(value) == 32 else set()
        return names

    def left(self, home: Path) -> set[str]:
        """The names of the secrets that messages carried out of the house: no disk can take these back."""
        kept = Outbox(PartyHome(home))
        messages = [kept.data(entry.number) for entry in kept.entries()]
        return {name for name, secret in self.named.items() if any(secret in message for message in messages)}

    def _openable(self, files: Iterable[bytes], key: bytes) -> set[bytes]:
        """The values that were sealed once and whose beginnings open at some offset of a file under ``key``."""
        beginnings: dict[int, set[bytes]] = {}
        for value in self._sealed:
            if len(value) >= 8:
                beginnings.setdefault(int.from_bytes(value[:8], "little"), set()).add(value)
        wanted = np.array(sorted(beginnings), dtype=np.uint64)
        found = set()
        for file in files:
            if len(file) < _NONCE_BYTES + 24:
                continue
            data = np.frombuffer(file, dtype=np.uint8)
            count = len(file) - _NONCE_BYTES - 16
            # The first block of AES-GCM's key stream for the nonce at every offset.
            counters = np.zeros((count, 16), dtype=np.uint8)
            counters[:, :_NONCE_BYTES] = np.lib.stride_tricks.sliding_window_view(data, _NONCE_BYTES)[:count]
            counters[:, 15] = 2
            encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
            stream = np.frombuffer(encryptor.update(counters.tobytes()), dtype=np.uint8).reshape(count, 16)
            sealed = np.lib.stride_tricks.sliding_window_view(data[_NONCE_BYTES:], 8)[:count]
            opened = np.ascontiguousarray(stream[:, :8] ^ sealed).view(np.uint64)[:, 0]
            for offset in np.flatnonzero(np.isin(opened, wanted)):
                nonce = file[offset : offset + _NONCE_BYTES]
                decryptor = Cipher(algorithms.AES(key), modes.CTR(nonce + (2).to_bytes(4, "big"))).decryptor()
                start = int(offset) + _NONCE_BYTES
                plain = decryptor.update(file[start : start + _COMPARED_BYTES])
                found |= {
                    value for value in beginnings[int(opened[offset])] if plain.startswith(value[:_COMPARED_BYTES])
                }
        return found


def _holds(file: bytes, secret: bytes) -> bool:
    return any(form in file for form in (secret, secret.hex().encode(), base64.b64encode(secret)))
