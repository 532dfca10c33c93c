from __future__ import annotations

import os
import socket
import sys

import pytest

from quantizer.system.sockets import listening_users


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says it")
@pytest.mark.parametrize(
    ("family", "bound", "looked_at"),
    [
        (socket.AF_INET, "127.0.0.1", "127.0.0.1"),
        (socket.AF_INET, "0.0.0.0", "127.0.0.1"),
        (socket.AF_INET6, "::1", "::1"),
        (socket.AF_INET6, "::", "127.0.0.1"),
    ],
)
def test_the_user_of_a_listening_socket_is_found_by_its_address(
    family: socket.AddressFamily, bound: str, looked_at: str
) -> None:
    with socket.socket(family) as listener:
        try:
            listener.bind((bound, 0))
        except OSError:
            pytest.skip("this machine has no such address")
        listener.listen()
        port = listener.getsockname()[1]
        assert listening_users(looked_at, port) == {os.geteuid()}
        if bound == looked_at:
            assert listening_users("127.0.0.9", port) == frozenset()
    assert listening_users(looked_at, port) == frozenset()
