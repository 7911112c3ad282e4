"""Command-line options of the commands that serve a page: address, TLS, log-in by an organisation."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

import typer

from undersong_common.pages.serving import Listening

if TYPE_CHECKING:
    from undersong_common.pages.site import Site

SECRET_VARIABLE = "UNDERSONG_OIDC_SECRET"  # noqa: S105 - the name of a variable
Port = Annotated[int, typer.Option(help="0 takes a free one.", min=0, max=65535)]


@dataclass(frozen=True)
class PageAddress:
    """The address that a page listens on, and the names and the certificate that browsers see."""

    bind: Annotated[str, typer.Option(help="Address to listen on; beyond this machine only with TLS.")] = "127.0.0.1"
    port: Port = 0
    name: Annotated[
        list[str] | None, typer.Option("--name", help="A further HOST or HOST:PORT under which browsers reach it.")
    ] = None
    certificate: Annotated[Path | None, typer.Option("--tls-certificate", help="PEM file.")] = None
    key: Annotated[Path | None, typer.Option("--tls-key", help="PEM file.")] = None
    proxy: Annotated[
        str,
        typer.Option(
            "--behind-proxy",
            metavar="ADDRESS",
            help="A proxy ends TLS for browsers: its IP address. Only the --name hosts are answered then, and only the"
            " proxy is believed about who asks (X-Forwarded-For).",
        ),
    ] = ""

    def listening(self) -> Listening:
        """Returns the checked address. Raises ConfigurationError where it would not be safe."""
        return Listening(self.bind, self.port, tuple(self.name or ()), self.certificate, self.key, self.proxy)


@dataclass(frozen=True)
class OrganisationLogin:
    """The log-in by an identity provider; none if ``issuer`` is "".

    Attributes:
        issuer, client, claim, groups, provider_proxy: as in :class:`undersong_common.pages.oidc.Provider`.
        secret_variable: environment variable that holds the client secret.
        roles: role by group, each as ``GROUP=ROLE``.
    """

    issuer: Annotated[str, typer.Option("--oidc-issuer", help="Address of an identity provider.")] = ""
    client: Annotated[str, typer.Option("--oidc-client", help="This page's name there.")] = ""
    secret_variable: Annotated[
        str, typer.Option("--oidc-secret-env", help="Environment variable with this page's secret there.")
    ] = SECRET_VARIABLE
    claim: Annotated[str, typer.Option("--oidc-claim", help="The provider's claim that names a new account here.")] = (
        "email"
    )
    groups: Annotated[str, typer.Option("--oidc-groups", help="The provider's claim that lists a person's groups.")] = (
        "groups"
    )
    roles: Annotated[
        list[str] | None,
        typer.Option(
            "--oidc-role",
            metavar="GROUP=ROLE",
            help="Role of a group; repeat for several. Without it an administrator names people and roles here.",
        ),
    ] = None
    provider_proxy: Annotated[
        str,
        typer.Option(
            "--oidc-proxy",
            metavar="ADDRESS",
            help="Proxy by which this page reaches the provider. The environment names none, and no certificates.",
        ),
    ] = ""

    def add_to(self, site: "Site", address: str, duties: Mapping[str, str] = MappingProxyType({})) -> None:
        """Adds the log-in by the identity provider to a page, if there is one.

        Args:
            address: address of the page in browsers.
            duties: duty under the rule of two by group.
        """
        from undersong_common.pages.accounts import ROLES, roles_by_group
        from undersong_common.pages.oidc import Provider, mount_oidc

        if not self.issuer:
            site.accounts.duties.serve_with("")
        else:
            client_secret = os.environ.get(self.secret_variable, "")
            role_by_group = roles_by_group(self.roles or (), ROLES)
            redirect_address = f"{address}/oidc/return"
            provider = Provider(
                self.issuer,
                self.client,
                client_secret,
                self.claim,
                redirect_address,
                self.groups,
                role_by_group,
                duties,
                self.provider_proxy,
            )
            mount_oidc(site, provider)
