"""Checks which addresses may be connected to, at the moment of connecting.

Rules:

1. A name is resolved once, and the connection uses the address that was checked. So a name that resolves to another
   address a moment later cannot evade the check.
2. If one address of a name is refused, the name is refused.
3. Addresses embedded in IPv6 (IPv4-mapped, 6to4, Teredo, NAT64) are checked as well.
"""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import Final

from aiohttp import ThreadedResolver
from aiohttp.abc import AbstractResolver, ResolveResult

# RFC 6052 and RFC 8215.
_NAT64: Final = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))
# IPv4-compatible addresses (RFC 4291, deprecated), which Python does not recognise.
_COMPATIBLE: Final = IPv6Network("::/96")
_HOSTS_OWN: Final = frozenset({IPv4Address("168.63.129.16")})
"""Addresses in public ranges that only the machine itself can reach: Azure's host."""


class RefusedAddressError(OSError):
    """A name resolves to a refused address."""


def why_refused(address: str) -> str | None:
    """Return why an address is not public; None if it is public.

    Example:
        >>> why_refused("169.254.169.254"), why_refused("::ffff:10.0.0.1"), why_refused("93.184.216.34")
        ('169.254.169.254 is link-local', '::ffff:10.0.0.1 contains 10.0.0.1, which is private', None)
    """
    # The part after "%" is the zone of a link-local address.
    found = ip_address(address.partition("%")[0])
    for inner in _embedded(found):
        if (reason := _kind(inner)) is not None:
            return f"{address} contains {inner}, which is {reason}"
    reason = _kind(found)
    return None if reason is None else f"{address} is {reason}"


def _embedded(address: IPv4Address | IPv6Address) -> list[IPv4Address]:
    if isinstance(address, IPv4Address):
        return []
    low = IPv4Address(int(address) & 0xFFFFFFFF)
    found = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    found += [low for network in _NAT64 if address in network]
    if address in _COMPATIBLE and int(address) > 1:  # not for :: and ::1
        found.append(low)
    return [inner for inner in found if inner is not None]


def _kind(address: IPv4Address | IPv6Address) -> str | None:
    if isinstance(address, IPv6Address) and (address.ipv4_mapped is not None or address in _NAT64[0]):
        return None  # the embedded address is checked instead
    # Tested from the most to the least specific, because link-local addresses are private too.
    for kind in ("loopback", "link_local", "multicast", "unspecified", "private", "reserved"):
        if getattr(address, f"is_{kind}"):
            return kind.replace("_", "-")
    return "an address of the machine itself" if address in _HOSTS_OWN else None if address.is_global else "not public"


def check_literal(host: str) -> None:
    """Check a host if it is a literal address, since aiohttp calls no resolver for one.

    Raises:
        RefusedAddressError: The address is refused.
    """
    try:
        reason = why_refused(host)
    except ValueError:
        return  # the host is a name, not an address
    if reason is not None:
        raise RefusedAddressError(reason)


class CheckedResolver(AbstractResolver):
    """Resolves names, and refuses those with addresses that are not public."""

    def __init__(self) -> None:
        # Not aiohttp's default, which depends on whether aiodns is installed.
        self._resolver = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the addresses of a name.

        Raises:
            RefusedAddressError: One of the addresses is not public.
        """
        # aiohttp connects to the addresses returned here, and resolves no further.
        found = await self._resolver.resolve(host, port, family)
        for entry in found:
            if (reason := why_refused(entry["host"])) is not None:
                raise RefusedAddressError(f"{host}: {reason}")
        return found

    async def close(self) -> None:
        """Close the wrapped resolver."""
        await self._resolver.close()
