"""The guard: what a party checks before it signs, and again before anything leaves. Default deny.

No check reads a record, because a refusal reaches the coordinator (docs/privacy.md, Non-interference). Warnings that
depend on records are for the party's own people only (undersong_client.records.cautions).
"""

from __future__ import annotations

from undersong_common.errors import PrivacyRefusal
from undersong_protocol.agreement import bounds
from undersong_protocol.agreement.bounds import Policy
from undersong_protocol.agreement.manifest import Manifest


def review(
    manifest: Manifest,
    policy: Policy,
    *,
    name: str,
    identity: bytes,
    embedder: str,
    teacher_model: str = "",
) -> None:
    """Checks everything in a manifest that a party can check by itself.

    Args:
        name, identity: this party's entry as it must stand in the roster (Ed25519 public key).
        embedder: SHA-256 (hex) of the embedding model this party holds.
        teacher_model: the local model this party fine-tunes teachers from; "" where it names none.

    Raises:
        PrivacyRefusal: names what is refused.
        ConfigurationError: the party itself is not ready.
    """
    bounds.check_statistics(manifest.plan, policy)
    manifest.plan.check_form()
    bounds.check(manifest.plan, manifest.roster, policy)  # before statistics are built and noise is priced
    manifest.verify()
    mine = [member for member in manifest.roster if member.name == name]
    if not mine or mine[0].identity != identity:
        raise PrivacyRefusal("the manifest's roster does not hold this party's own name and key")
    if manifest.embedder != embedder:
        raise PrivacyRefusal(
            f"the run uses embedder {manifest.embedder[:16]}..., this party holds {embedder[:16]}...",
            "install the same embedding model everywhere",
        )
    for planned in manifest.plan.sums:  # last: it may load a model, which a refused run is not worth
        planned.build().check_party(teacher_model)
