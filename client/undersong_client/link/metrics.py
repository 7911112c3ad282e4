"""Writes the daemon's metrics as a text file in Prometheus's format (for node_exporter's textfile collector).

Nothing in it depends on a record. The spent budget follows from the approved plans and the requested sums, both of
which the coordinator knows.
"""

from collections.abc import Mapping

METRICS: Mapping[str, str] = {
    "connected": "1 while a stream to the coordinator stands and the party answers.",
    "paused": "1 while the hospital's people have paused it.",
    "last_contact_seconds": "When a stream to the coordinator last stood, seconds since the epoch.",
    "requests_waiting": "Plans that wait for a decision here.",
    "certificate_expires_seconds": "When the certificate ends, seconds since the epoch.",
    "epsilon_budget": "The budget's epsilon over all runs.",
    "epsilon_left": "What is left of it, at the budget's delta.",
    "written_seconds": "When this file was written, seconds since the epoch: a daemon that is gone writes no more.",
}


def text(values: Mapping[str, float | None]) -> str:
    """Returns the file's text; leaves out metrics whose value is None.

    >>> print(text({"connected": 1.0, "paused": None}), end="")
    # HELP undersong_party_connected 1 while a stream to the coordinator stands and the party answers.
    # TYPE undersong_party_connected gauge
    undersong_party_connected 1.0
    """
    return "".join(
        f"# HELP undersong_party_{name} {METRICS[name]}\n# TYPE undersong_party_{name} gauge\n"
        f"undersong_party_{name} {value!r}\n"
        for name, value in values.items()
        if value is not None
    )
