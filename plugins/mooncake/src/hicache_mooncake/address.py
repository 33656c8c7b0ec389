"""Addresses of servers, and a short knock that tells whether a Mooncake server answers there.

The SDK retries a master that is not there for a minute and a half, and waits half a minute for one that has stopped;
so it is asked only after the knock was answered.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

from hicache_core.errors import OpenError, OptionError

_MAGIC = 21
_HEADER = struct.Struct("<BBBBIIII")
"""Request header of coro_rpc (yalantinglibs): magic, version, serializer, type, sequence, function, two lengths."""
_NO_FUNCTION = 0xDEADBEEF
"""An id that no function has: a server that speaks coro_rpc answers that it does not know it."""


@dataclass(frozen=True, slots=True)
class Address:
    """host:port of a server. option: where a user named it."""

    host: str
    port: int
    option: str

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, option: str) -> Address:
    """Raises OptionError for anything but host:port."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise OptionError(f"{option}={text!r} is no host:port, such as 10.0.0.1:50051")
    return Address(host, int(port), option)


def knock(address: Address, timeout: float) -> str:
    """Empty where a Mooncake server answers at the address, else what happens instead. Takes 2 timeouts at most."""
    try:
        connection = socket.create_connection((address.host, address.port), timeout)
    except socket.gaierror as error:
        return f"its host name cannot be resolved ({error.strerror})"
    except TimeoutError:
        return f"no connection within {timeout:g} s"
    except OSError as error:
        return f"no connection ({error.strerror or error})"
    with connection:
        try:
            connection.settimeout(timeout)
            connection.sendall(_HEADER.pack(_MAGIC, 0, 0, 0, 1, _NO_FUNCTION, 0, 0))
            answer = connection.recv(1)
        except TimeoutError:
            return (
                f"something accepts the connection and does not answer within {timeout:g} s: a server that hangs, or "
                "another port (of a Mooncake master it must be the RPC port, not that of its metrics)"
            )
        except OSError as error:
            return f"the connection broke ({error.strerror or error})"
    if answer != bytes([_MAGIC]):
        return "something answers that is no Mooncake server"
    return ""


def require(address: Address, timeout: float, *, start: str) -> None:
    """Raises OpenError where no Mooncake server answers. start: the command that starts one."""
    trouble = knock(address, timeout)
    if trouble:
        raise OpenError(f"no Mooncake server at {address.option}={address}: {trouble}. Start one: {start}")
