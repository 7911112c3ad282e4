"""Command-line options of the commands that serve a page: address, TLS, log-in by an organisation."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from undersong_common.pages.site import Site

Bind = Annotated[str, typer.Option(help="Address to listen on; beyond this machine only with TLS.")]
Name = Annotated[
    list[str] | None, typer.Option("--name", help="A further HOST or HOST:PORT under which browsers reach it.")
]
Certificate = Annotated[Path | None, typer.Option("--tls-certificate", help="PEM file.")]
Key = Annotated[Path | None, typer.Option("--tls-key", help="PEM file.")]
Proxy = Annotated[
    str,
    typer.Option(
        "--behind-proxy",
        metavar="ADDRESS",
        help="A proxy ends TLS for browsers: its IP address. Only the --name hosts are answered then, and only the"
        " proxy is believed about who asks (X-Forwarded-For).",
    ),
]
Issuer = Annotated[str, typer.Option("--oidc-issuer", help="Address of an identity provider.")]
Client = Annotated[str, typer.Option("--oidc-client", help="This page's name there.")]
SecretVariable = Annotated[
    str, typer.Option("--oidc-secret-env", help="Environment variable with this page's secret there.")
]
Claim = Annotated[str, typer.Option("--oidc-claim", help="The provider's claim that names a new account here.")]
Groups = Annotated[str, typer.Option("--oidc-groups", help="The provider's claim that lists a person's groups.")]
GroupRoles = Annotated[
    list[str] | None,
    typer.Option(
        "--oidc-role",
        metavar="GROUP=ROLE",
        help="Role of a group; repeat for several. Without it an administrator names people and roles here.",
    ),
]
SECRET_VARIABLE = "UNDERSONG_OIDC_SECRET"  # noqa: S105 - the name of a variable


def log_in_by_organisation(
    site: "Site",
    address: str,
    issuer: str,
    client: str,
    variable: str,
    claim: str,
    groups: str,
    roles: Sequence[str],
    duties: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Adds the log-in by an identity provider to a page if ``issuer`` is not "".

    Args:
        address: address of the page in browsers.
        variable: environment variable that holds the client secret.
        issuer, client, claim, groups, roles: as in :class:`undersong_common.pages.oidc.Provider`; ``roles`` as
            ``GROUP=ROLE``.
        duties: duty under the rule of two by group.
    """
    from undersong_common.pages.accounts import ROLES, roles_by_group
    from undersong_common.pages.oidc import Provider, mount_oidc

    site.accounts.duties.provider = issuer
    if issuer:
        back, secret = f"{address}/oidc/return", os.environ.get(variable, "")
        mount_oidc(site, Provider(issuer, client, secret, claim, back, groups, roles_by_group(roles, ROLES), duties))
