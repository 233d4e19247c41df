"""Addresses of the network: where to listen, and whether that is this machine alone."""

from __future__ import annotations

from ipaddress import ip_address

LOOPBACK = "127.0.0.1"


def parse_address(text: str) -> tuple[str, int] | None:
    """Parse ``127.0.0.1:8080``, ``[::1]:8080``, or a port alone, which is one of the loopback interface; else None.

    >>> parse_address("8080"), parse_address("[::1]:0"), parse_address("0.0.0.0:http")
    (('127.0.0.1', 8080), ('::1', 0), None)
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if colon else LOOPBACK
    return (host, int(port)) if host and port.isascii() and port.isdigit() and int(port) <= 65535 else None


def format_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
