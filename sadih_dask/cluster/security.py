"""Which connections are trusted.

The Dask protocol runs whatever it is sent. Whoever can reach a scheduler or change what travels to
it can run programs as its user, and read everything that they can. So there is encryption with
certificates on both sides: always for processes that are started here, which every user of the
machine could reach, and between machines, unless somebody has asked by name to do without.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sadih_dask.errors import Argument, ConfigError, Remedy

if TYPE_CHECKING:
    from sadih_dask.cluster.settings import Tls

_FILES = {
    "ca_file": ("SADIH_TLS_CA", "distributed.comm.tls.ca-file"),
    "cert_file": ("SADIH_TLS_CERT", "distributed.comm.tls.client.cert"),
    "key_file": ("SADIH_TLS_KEY", "distributed.comm.tls.client.key"),
}
"""Where else the files of `Tls` may be named: in the environment, and in Dask's configuration."""


def check_address(address: str, allow_plain_tcp: bool) -> str:
    """The address with its protocol; one over which code would travel in the open is refused."""
    protocol, found, rest = address.partition("://")
    if not found:
        protocol, rest = "tcp", address
    if "@" in rest or "?" in rest:
        raise ConfigError("an address of a scheduler is tls://host:port, without user or options")
    host, colon, port = rest.rpartition(":")
    if protocol not in ("tcp", "tls") or not colon or not host or not port.isdecimal():
        raise ConfigError(f"{address!r} is no address of a scheduler, such as tls://host:8786")
    if protocol == "tcp" and not allow_plain_tcp and not is_loopback(host.strip("[]")):
        raise plain_tcp_refused(f"to {host.strip('[]')!r}")
    return f"{protocol}://{rest}"


def plain_tcp_refused(where: str) -> ConfigError:
    """Why there is to be encryption, and how."""
    return ConfigError(
        f"plain TCP {where} is refused: the Dask protocol runs whatever it is sent, so that "
        "anybody who can reach the scheduler or change what travels to it can run programs as you",
        remedy=Remedy(
            "Use tls:// with certificates ({}, {} and {}), an SSH tunnel to 127.0.0.1, or, in a "
            "network in which you trust everybody, say so by name: {}",
            *map(Argument, _FILES),
            Argument("allow_plain_tcp", True),
        ),
    )


def is_loopback(host: str) -> bool:
    """Whether a name or address can only be this machine."""
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return False
    return bool(found) and all(
        ipaddress.ip_address(one.partition("%")[0]).is_loopback for one in found
    )


def credentials(tls: Tls) -> Any:
    """The certificates that are given, or else new ones, which live as long as the process."""
    from distributed.security import Security

    return Security.temporary() if not any(tls_files(tls).values()) else given_credentials(tls)


def given_credentials(tls: Tls) -> Any:
    """The certificates that are given, as Dask takes them."""
    from distributed.security import Security

    files = tls_files(tls)
    for name, path in files.items():
        _check_file(name, path)
    ends = {
        f"tls_{role}_{kind}": files[f"{kind}_file"]
        for role in ("client", "scheduler", "worker")
        for kind in ("cert", "key")
    }
    security = Security(require_encryption=True, tls_ca_file=files["ca_file"], **ends)
    try:
        security.get_connection_args("client")
    except OSError as error:  # an SSLError is one
        raise ConfigError(f"the certificates cannot be used together: {error}") from error
    return security


def tls_files(tls: Tls) -> dict[str, str | None]:
    """Paths from the settings, the environment, or Dask's configuration, in this order."""
    import dask

    return {
        name: getattr(tls, name) or os.environ.get(variable) or dask.config.get(key, None)
        for name, (variable, key) in _FILES.items()
    }


def _check_file(name: str, path: str | None) -> None:
    if path is None:
        raise ConfigError(
            f"tls:// needs three files and {name} is missing",
            remedy=Remedy(f"Give {{}} or {_FILES[name][0]}", Argument(name)),
        )
    if "-----BEGIN" in path:  # Dask's configuration may hold the text itself, never to be shown
        return
    try:
        with Path(path).open("rb") as file:
            begins = file.read(4096).lstrip()
    except OSError as error:
        raise ConfigError(f"{name} {path} cannot be read: {error.strerror}") from error
    if b"-----BEGIN" not in begins:
        raise ConfigError(f"{name} {path} is no PEM file (-----BEGIN ...)")
