"""A machine in a folder, whose accounts and systemd are lists, and this one without free descriptors."""

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

from undersong_common.program.moving import Owner
from undersong_common.program.services import Machine

ACCOUNT = Owner(64001, 64001)


class MachineInFolder(Machine):
    """Records the programs that would be called; ``useradd`` and ``userdel`` change its accounts."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.calls: list[str] = []
        self.accounts: dict[str, Owner] = {}
        for folder in ("run/systemd/system", "etc/systemd/system", "var/lib"):
            (root / folder).mkdir(parents=True, exist_ok=True)

    def call(self, *words):
        self.calls.append(" ".join(words))
        if words[0] == "useradd":
            self.accounts[words[-1]] = ACCOUNT
        if words[0] == "userdel":
            del self.accounts[words[-1]]

    def account(self, name):
        return self.accounts.get(name)


@contextlib.contextmanager
def without_descriptors() -> Iterator[None]:
    """This process can open no further file in the block."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
