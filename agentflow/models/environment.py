"""Reads the proxy and the certificates from the environment.

Rules:

1. The proxy is `HTTP_PROXY` or `HTTPS_PROXY`, depending on the URL's scheme, else `ALL_PROXY`; the lower-case names
   take precedence.
2. A host in `NO_PROXY` is reached directly. As in the standard library, an entry matches a host and its subdomains and, if the
   entry has a port, only that port. A URL without a port has the default port of its scheme.
3. `SSL_CERT_FILE`, else `SSL_CERT_DIR`, replaces the system's certificates.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import ssl

_PORTS = {"http": 80, "https": 443}


class WrongSettingError(ValueError):
    """The environment's proxy or certificates are unusable; the request should not be retried."""


def proxy_for(url: str) -> str | None:
    """Return the proxy's URL for a request; None if it needs no proxy.

    Raises:
        WrongSettingError: The proxy is not an HTTP proxy, the only supported kind.
    """
    from urllib.request import getproxies, proxy_bypass  # slow to import, so `http.py` calls this in a thread

    proxies = getproxies()
    if not proxies:
        return None
    try:
        parts = urlsplit(url)
        # The standard library compares the port only if the host has one.
        host = f"{parts.hostname}:{parts.port or _PORTS.get(parts.scheme)}"
    except ValueError:  # aiohttp reports this error too
        return None
    name, proxy = next(
        ((name, proxy) for name in (parts.scheme, "all") if (proxy := proxies.get(name))),
        ("", ""),
    )
    if not proxy or proxy_bypass(host):
        return None
    # Many programs accept "host:port" as a proxy without a scheme.
    scheme, named, _ = proxy.partition("://")
    if named and scheme.lower() not in ("http", "https"):
        raise WrongSettingError(
            f"{name}_proxy={scheme}://… is not an HTTP proxy, and direct wires support only http:// and https://. Use such a "
            f"proxy, or add {parts.hostname} to no_proxy."
        )
    return proxy if named else f"http://{proxy}"


def certificates() -> ssl.SSLContext | bool:
    """Return the certificates that the environment names; True means the system's certificates.

    Raises:
        WrongSettingError: The certificates cannot be read.
    """
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        if path := os.environ.get(name):
            return _context(name, path)
    return True


@lru_cache(maxsize=8)
def _context(name: str, path: str) -> ssl.SSLContext:
    import ssl

    try:
        if name == "SSL_CERT_DIR":
            return ssl.create_default_context(capath=path)
        return ssl.create_default_context(cafile=path)
    except OSError as error:
        raise WrongSettingError(
            f"{name}={path!r} cannot be read as certificates ({error}). Use a PEM file, or pass tls= with an ssl.SSLContext."
        ) from error
