"""A machine in a folder: its files lie below a root, and its accounts and its systemd are lists."""

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
