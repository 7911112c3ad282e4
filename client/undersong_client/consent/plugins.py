"""Other packages' statistics at a party, imported only after its people have trusted them by name and source hash."""

import logging
from dataclasses import dataclass
from typing import Any

from undersong_client.consent.policy import HospitalPolicy
from undersong_common import plugins
from undersong_common.errors import ConfigurationError
from undersong_common.printable import shell_path
from undersong_protocol import statistics

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Installed:
    """A statistic that an installed package declares.

    Attributes:
        source: SHA-256 (hex) of the installed source; "" if it cannot be computed.
        trusted: SHA-256 (hex) that the policy trusts; "" if it trusts none of that name.
        fault: reason why ``source`` cannot be computed; "" if it can.
    """

    name: str
    package: str
    source: str
    trusted: str
    fault: str = ""

    @property
    def typed(self) -> str:
        """Name of the statistic, quoted for a shell command that a person copies, because the package has chosen it."""
        return shell_path(self.name)

    @property
    def holds(self) -> bool:
        """True if the installed source is the trusted one."""
        return not self.fault and self.trusted == self.source != ""

    @property
    def state(self) -> str:
        """State for people: trusted, not trusted, or another source than the trusted one."""
        if self.fault:
            return self.fault
        if not self.trusted:
            return "not trusted: runs that ask for it are refused, and nothing of it is imported"
        return "trusted" if self.holds else "NOT WHAT WAS TRUSTED: runs that ask for it are refused"

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "state": self.state}


def installed(policy: HospitalPolicy) -> tuple[Installed, ...]:
    """Lists every statistic that another package declares here, and every trusted one, without importing any."""
    trusted = policy.trusted
    entries = []
    for plugin in plugins.installed("statistics"):
        source, fault = "", ""
        try:
            source = plugins.source_hash(plugin)
        except ConfigurationError as error:
            fault = error.problem
        entries.append(Installed(plugin.name, plugin.words, source, trusted.get(plugin.name, ""), fault))
    missing = sorted(set(trusted) - {entry.name for entry in entries})
    return (*entries, *(Installed(name, "", "", trusted[name], "trusted, and not installed") for name in missing))


def load_trusted(policy: HospitalPolicy) -> None:
    """Imports and registers the statistics whose installed source is the trusted one; logs the other trusted names.

    The policy's checks refuse a run that asks for any other one.
    """
    for name, source in policy.trusted.items():
        if statistics.source(name) == source:
            continue
        try:
            if (plugin := plugins.find("statistics", name)) is None:
                raise ConfigurationError(f"the statistic {name!r} is trusted and not installed", "install its package")
            statistics.register_foreign(name, plugins.load(plugin, source), source)
        except ConfigurationError as error:
            log.error("%s: runs that ask for it are refused (%s)", error.problem, error.remedy)
