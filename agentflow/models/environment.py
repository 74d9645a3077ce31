"""Which proxy and which certificates the environment names, read as httpx reads it (and so the vendors' own clients).

Rules:

1. `HTTP_PROXY` and `HTTPS_PROXY` by the address's scheme, else `ALL_PROXY`; each in lower case too, which comes first.
2. A host of `NO_PROXY` is reached directly: with those below it if it is a name, on one port or with one scheme if it says
   so. A port counts where the address leaves out the scheme's own, too (httpx reads `host:443` as another host).
3. `SSL_CERT_FILE`, else `SSL_CERT_DIR`, stands for the system's certificates.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

if TYPE_CHECKING:
    import ssl

__all__ = ["WrongSettingError", "certificates", "proxy_for"]

_PORTS = {"http": 80, "https": 443}


class WrongSettingError(ValueError):
    """The environment names a proxy or certificates that cannot be used; no attempt gets further."""


def proxy_for(url: str) -> str | None:
    """The address of the proxy for a request, None: it goes directly.

    Raises:
        WrongSettingError: It is no proxy for HTTP, which is the one way to proxies that is spoken here.
    """
    from urllib.request import getproxies  # slow to import; `http.py` has done it in a thread

    proxies = getproxies()
    if not proxies:
        return None
    try:
        parts = urlsplit(url)
    except ValueError:  # aiohttp says so too
        return None
    name, proxy = next(
        ((name, proxy) for name in (parts.scheme, "all") if (proxy := proxies.get(name))),
        ("", ""),
    )
    if not proxy or _is_direct(parts, proxies.get("no", "")):
        return None
    scheme, named, _ = proxy.partition("://")
    if named and scheme.lower() not in ("http", "https"):
        raise WrongSettingError(
            f"{name}_proxy={scheme}://… is not for HTTP: a direct wire asks proxies that begin with http:// or https://. "
            f"Name one, or {parts.hostname} in no_proxy."
        )
    return proxy if named else f"http://{proxy}"


def _is_direct(url: SplitResult, no_proxy: str) -> bool:
    return any(_matches(entry.strip(), url) for entry in no_proxy.split(","))


def _matches(entry: str, url: SplitResult) -> bool:
    """Whether an entry of `NO_PROXY` means the host of an address."""
    if entry in ("", "*"):
        return entry == "*"
    scheme, named, rest = entry.rpartition("://")
    if named and scheme.lower() not in ("all", url.scheme):
        return False
    try:
        wanted = urlsplit(f"//{rest if not _is_address(rest) or ':' not in rest else f'[{rest}]'}")
        host, port = (wanted.hostname or "").lower(), wanted.port
    except ValueError:  # no host that could be meant
        return False
    if port is not None and port != (url.port or _PORTS.get(url.scheme)):
        return False
    found = (url.hostname or "").lower()
    if named or _is_address(host) or host == "localhost":
        return host == found
    return found == host or found.endswith(host if host.startswith(".") else f".{host}")


def _is_address(host: str) -> bool:
    from ipaddress import ip_address

    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def certificates() -> ssl.SSLContext | bool:
    """The certificates that the environment names; True: the system's.

    Raises:
        WrongSettingError: They cannot be read.
    """
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        if place := os.environ.get(name):
            return _context(name, place)
    return True


@lru_cache(maxsize=8)
def _context(name: str, place: str) -> ssl.SSLContext:
    import ssl

    try:
        if name == "SSL_CERT_DIR":
            return ssl.create_default_context(capath=place)
        return ssl.create_default_context(cafile=place)
    except OSError as error:
        raise WrongSettingError(
            f"{name}={place!r} cannot be read as certificates ({error}). Name a PEM file, or pass tls= with an ssl.SSLContext."
        ) from error
