"""The systemd unit that ``install-service`` writes."""

from __future__ import annotations

from pathlib import Path

UNIT = """\
[Unit]
Description=Undersong party daemon ({party})
Documentation=https://github.com/undersong/undersong
Wants=network-online.target
After=network-online.target

[Service]
Type=exec
ExecStart={program} run --home {home} --log-format json
Restart=on-failure
RestartSec=5
# 2: the configuration, 3: a privacy refusal, 4: the coordinator's fault. A restart would not help: a person must look.
RestartPreventExitStatus=2 3 4
TimeoutStopSec=60
KillSignal=SIGTERM
# The process that computes vectors ends with the daemon. Where memory is short it is killed first, and started again.
KillMode=mixed
OOMPolicy=continue
UMask=0077
{user}NoNewPrivileges=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectSystem=strict
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectControlGroups=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
CapabilityBoundingSet=
ReadWritePaths={writable}

[Install]
WantedBy={target}
"""

USER_ONLY = (
    "PrivateDevices",
    "ProtectKernelTunables",
    "ProtectKernelModules",
    "ProtectControlGroups",
    "CapabilityBoun",
)


def unit(*, party: str, program: list[str], home: Path, writable: list[Path], user: str | None) -> str:
    """The unit's text.

    Args:
        program: the words that start this program.
        writable: folders that the daemon writes to.
        user: the account it runs under as a system service; None makes a unit of the present user.
    """
    text = UNIT.format(
        party=party,
        program=" ".join(_quoted(word) for word in program),
        home=_quoted(home),
        writable=" ".join(_quoted(path) for path in dict.fromkeys(writable)),
        user="" if user is None else f"User={user}\n",
        target="multi-user.target" if user is not None else "default.target",
    )
    if user is None:
        # A user's own manager may not take these away from itself.
        text = "".join(line for line in text.splitlines(keepends=True) if not line.startswith(USER_ONLY))
    return text


def default_path(*, system: bool, user_home: Path) -> Path:
    name = "undersong-party.service"
    return Path("/etc/systemd/system") / name if system else user_home / ".config/systemd/user" / name


def _quoted(path: Path | str) -> str:
    text = str(path).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{text}"' if " " in text else text
