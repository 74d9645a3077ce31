"""Reads proxy and certificates from the environment, as httpx (and so the vendors' own clients) does.

Rules:

1. `HTTP_PROXY` and `HTTPS_PROXY` by the URL's scheme, else `ALL_PROXY`; the lower-case names take precedence.
2. A host in `NO_PROXY` is reached directly: a name with its subdomains, limited to a port or scheme if the entry has one. The
   scheme's default port matches a URL without a port (httpx treats `host:443` as another host).
3. `SSL_CERT_FILE`, else `SSL_CERT_DIR`, replaces the system's certificates.
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
    """The environment's proxy or certificates are unusable; the request should not be retried."""


def proxy_for(url: str) -> str | None:
    """Return the proxy's URL for a request; None if it goes directly.

    Raises:
        WrongSettingError: The proxy is not an HTTP proxy, the only supported kind.
    """
    from urllib.request import getproxies  # slow to import; `http.py` has imported it in a thread

    proxies = getproxies()
    if not proxies:
        return None
    try:
        parts = urlsplit(url)
    except ValueError:  # aiohttp reports it as well
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
            f"{name}_proxy={scheme}://… is not an HTTP proxy, and direct wires support only http:// and https://. Use such a "
            f"proxy, or add {parts.hostname} to no_proxy."
        )
    return proxy if named else f"http://{proxy}"


def _is_direct(url: SplitResult, no_proxy: str) -> bool:
    return any(_matches(entry.strip(), url) for entry in no_proxy.split(","))


def _matches(entry: str, url: SplitResult) -> bool:
    """Return whether an entry of `NO_PROXY` matches the host of a URL."""
    if entry in ("", "*"):
        return entry == "*"
    scheme, named, rest = entry.rpartition("://")
    if named and scheme.lower() not in ("all", url.scheme):
        return False
    try:
        wanted = urlsplit(f"//{rest if not _is_address(rest) or ':' not in rest else f'[{rest}]'}")
        host, port = (wanted.hostname or "").lower(), wanted.port
    except ValueError:  # not a valid host
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
    """Return the certificates of the environment; True: the system's.

    Raises:
        WrongSettingError: They are unreadable.
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
            f"{name}={place!r} cannot be read as certificates ({error}). Use a PEM file, or pass tls= with an ssl.SSLContext."
        ) from error
