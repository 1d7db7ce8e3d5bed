"""As another user: greet whatever listens on the loopback ports given, in the language of torch's TCPStore.

Prints the ports that answered as a store does. Usage: speak_to_stores.py USER PORT...
"""

from __future__ import annotations

import os
import socket
import struct
import sys

# torch/csrc/distributed/c10d/TCPStoreBackend.hpp
VALIDATE, PING = 0, 13
MAGIC = 0x3C85F7CE
NONCE = 0x5EED5EED
PATIENCE_S = 2.0


def answers(port: int) -> bool:
    """Whether a store answers to the ping of a stranger."""
    try:
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as call:
            call.sendall(struct.pack("<BIBI", VALIDATE, MAGIC, PING, NONCE))
            return call.recv(4, socket.MSG_WAITALL) == struct.pack("<I", NONCE)
    except OSError:
        return False


def main(user: int, ports: list[int]) -> None:
    socket.getaddrinfo("127.0.0.1", 0)  # loads what the other user may not be able to read
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    print(*(port for port in ports if answers(port)))


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(port) for port in sys.argv[2:]])
