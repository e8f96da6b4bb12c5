"""Which connections are trusted.

The Dask protocol runs whatever it is sent. Whoever can reach a scheduler or change what travels to
it can run programs as its user, and read everything that they can. So between machines there is
encryption with certificates on both sides, unless somebody has asked by name to do without.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from pathlib import Path
from typing import Any

from sadih_dask.cluster.settings import Tls
from sadih_dask.errors import InputError

_FILES = {"ca_file": "CA", "cert_file": "CERT", "key_file": "KEY"}
_WHY = (
    "the Dask protocol runs whatever it is sent, so that anybody who can reach the scheduler or "
    "change what travels to it can run programs as you"
)
_HOW = (
    "use tls:// with certificates (--tls-ca, --tls-cert and --tls-key, or [cluster.tls]), an SSH "
    "tunnel to 127.0.0.1, or, in a network in which you trust everybody, say so by name: "
    "--allow-plain-tcp, or allow_plain_tcp = true in [cluster]"
)


def check_address(address: str, allow_plain_tcp: bool) -> str:
    """The address with its protocol; one over which code would travel in the open is refused."""
    protocol, found, rest = address.partition("://")
    if not found:
        protocol, rest = "tcp", address
    if "@" in rest or "?" in rest:
        raise InputError("an address of a scheduler is tls://host:port, without user or options")
    host, colon, port = rest.rpartition(":")
    if protocol not in ("tcp", "tls") or not colon or not host or not port.isdecimal():
        raise InputError(f"{address!r} is no address of a scheduler, such as tls://host:8786")
    if protocol == "tcp":
        check_plain(host.strip("[]"), allow_plain_tcp)
    return f"{protocol}://{rest}"


def check_plain(host: str, allow_plain_tcp: bool) -> None:
    """Refuse a host to which there would be no encryption, unless it is this machine."""
    if not allow_plain_tcp and not is_loopback(host):
        raise InputError(f"plain TCP to or from {host!r} is refused: {_WHY}. Instead, {_HOW}")


def is_loopback(host: str) -> bool:
    """Whether a name or address can only be this machine."""
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return False
    return bool(found) and all(
        ipaddress.ip_address(one.partition("%")[0]).is_loopback for one in found
    )


def security_for(tls: Tls, *, generated: bool) -> Any:
    """Certificates as Dask takes them; ``generated`` ones only where this process starts it all."""
    from distributed.security import Security

    if tls.generate:
        if not generated:
            raise InputError(
                "certificates can only be made for a cluster that is started here; a running "
                "scheduler has its own: give ca_file, cert_file and key_file"
            )
        return temporary()
    files = tls_files(tls)
    for name, path in files.items():
        _check_file(name, path)
    ends = {
        f"tls_{role}_{kind}": files[f"{kind}_file"]
        for role in ("client", "scheduler", "worker")
        for kind in ("cert", "key")
    }
    return Security(require_encryption=True, tls_ca_file=files["ca_file"], **ends)


def temporary() -> Any:
    """Certificates that live as long as the process."""
    from distributed.security import Security

    try:
        return Security.temporary()
    except ImportError as error:
        raise InputError(
            "making certificates needs cryptography: pip install 'sadih-dask[tls]'"
        ) from error


def tls_files(tls: Tls) -> dict[str, str | None]:
    """Paths from the settings, the environment, or Dask's configuration, in this order."""
    import dask

    asked = {
        "ca_file": "ca-file",
        "cert_file": "client.cert",
        "key_file": "client.key",
    }
    return {
        name: getattr(tls, name)
        or os.environ.get(f"SADIH_TLS_{_FILES[name]}")
        or dask.config.get(f"distributed.comm.tls.{asked[name]}", None)
        for name in _FILES
    }


def wants_tls(tls: Tls) -> bool:
    """Whether certificates are there or are to be made."""
    return tls.generate or any(tls_files(tls).values())


def _check_file(name: str, path: str | None) -> None:
    option = f"--tls-{_FILES[name].lower()}"
    if path is None:
        raise InputError(
            f"tls:// needs three files and {name} is missing: give {option}, SADIH_TLS_"
            f"{_FILES[name]} or [cluster.tls] {name}"
        )
    if "-----BEGIN" in path:  # Dask's configuration may hold the text itself, never to be shown
        return
    try:
        with Path(path).open("rb") as file:
            begins = file.read(4096).lstrip()
    except OSError as error:
        raise InputError(f"{option} {path} cannot be read: {error.strerror}") from error
    if b"-----BEGIN" not in begins:
        raise InputError(f"{option} {path} is no PEM file (-----BEGIN ...)")
