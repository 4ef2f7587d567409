"""The socket of a server, for IPv4 and IPv6.

`::` stands for every address of both families, in one socket: pods have addresses of one family or of both,
and a server does not know which its clients use. asyncio would bind `::` to IPv6 alone. On a machine without
IPv6 it is every IPv4 address.
"""

import socket
from typing import Any

from collage.errors import OptionError

EVERY_ADDRESS = "::"
_LONGEST_PORT = 65535


def open_socket(host: str, port: int) -> socket.socket:
    """Bind a socket that the server then listens on.

    Args:
        host: address or name; an IPv6 address may have brackets.
        port: 0 takes a free one.

    Raises:
        OptionError: the address cannot be bound.
    """
    name = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        if not 0 <= port <= _LONGEST_PORT:
            raise OSError("ports are between 0 and 65535")
        if name in ("", EVERY_ADDRESS):
            return _bind_every_address(port)
        family, _, _, _, address = socket.getaddrinfo(
            name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return _bind(family, address)
    except OSError as error:
        raise OptionError(
            f"cannot listen on {host!r} port {port}: {error.strerror or error}; choose an address of this "
            "machine (:: is every one) and a free port"
        ) from error


def _bind_every_address(port: int) -> socket.socket:
    try:
        return _bind(socket.AF_INET6, (EVERY_ADDRESS, port))
    except OSError as error:
        if socket.has_ipv6 and isinstance(error, PermissionError):
            raise
        return _bind(socket.AF_INET, ("0.0.0.0", port))  # a kernel without IPv6


def _bind(family: int, address: tuple[Any, ...]) -> socket.socket:
    created = socket.socket(family, socket.SOCK_STREAM)
    try:
        created.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            is_single = address[0] != EVERY_ADDRESS
            created.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, is_single)
        created.bind(address)
    except BaseException:
        created.close()
        raise
    return created
