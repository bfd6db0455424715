"""Ports for servers that a test must know before they listen."""
import contextlib
import random
import socket
from pathlib import Path

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> list[int]:
    """Different ports that nothing listens on now. They are below those that the kernel gives to
    whoever names none, such as a neighbour, or a client that waits for its server and would meet
    itself there."""
    end = max(int(RANGE.read_text().split()[0]), 1 << 11)
    found: list[int] = []
    with contextlib.ExitStack() as held:
        while len(found) < count:
            port = random.randrange(end // 2, end)
            with contextlib.suppress(OSError):  # somebody listens there
                held.enter_context(socket.create_server(("127.0.0.1", port)))
                found.append(port)
    return found
