from __future__ import annotations

import os
import socket
import sys

import pytest

from quantizer.system.sockets import NOBODY, connected_user, listening_users

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says it")


@LINUX
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


def _connected(
    listener: socket.socket, family: socket.AddressFamily, host: str
) -> tuple[socket.socket, socket.socket, tuple[str, int]]:
    client = socket.socket(family)
    client.connect((host, listener.getsockname()[1]))
    accepted, peer = listener.accept()
    return client, accepted, (peer[0], peer[1])


@LINUX
@pytest.mark.parametrize(
    ("family", "bound", "client_family", "asked"),
    [
        (socket.AF_INET, "127.0.0.1", socket.AF_INET, "127.0.0.1"),
        (socket.AF_INET, "127.0.0.1", socket.AF_INET6, "::ffff:127.0.0.1"),
        (socket.AF_INET6, "::1", socket.AF_INET6, "::1"),
        (socket.AF_INET6, "::", socket.AF_INET, "127.0.0.1"),
    ],
)
def test_the_user_at_the_other_end_of_a_connection_is_found_until_it_closes_it(
    family: socket.AddressFamily, bound: str, client_family: socket.AddressFamily, asked: str
) -> None:
    with socket.socket(family) as listener:
        try:
            listener.bind((bound, 0))
            listener.listen()
            client, accepted, peer = _connected(listener, client_family, asked)
        except OSError:
            pytest.skip("this machine has no such address")
        own = accepted.getsockname()[:2]
        with client, accepted:
            assert connected_user(own, peer) == os.geteuid()
            client.shutdown(socket.SHUT_WR)
            assert connected_user(own, peer) == os.geteuid()
            client.close()
            assert connected_user(own, peer) == NOBODY
    assert connected_user(own, (peer[0], 1)) == NOBODY


@LINUX
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can be another user")
def test_another_user_at_the_other_end_of_a_connection_is_told_from_this_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        os.seteuid(65534)
        try:
            client, accepted, peer = _connected(listener, socket.AF_INET, "127.0.0.1")
        finally:
            os.seteuid(0)
        with client, accepted:
            assert connected_user(accepted.getsockname(), peer) == 65534


def test_where_the_system_does_not_say_it_nobody_is_told_from_another(monkeypatch: pytest.MonkeyPatch) -> None:
    assert connected_user(("nonsense", 1), ("127.0.0.1", 2)) is None
    assert connected_user(("::1", 1), ("127.0.0.1", 2)) is None

    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(socket, "socket", refused)
    assert connected_user(("127.0.0.1", 1), ("127.0.0.1", 2)) is None
    monkeypatch.setattr(sys, "platform", "darwin")
    assert connected_user(("127.0.0.1", 1), ("127.0.0.1", 2)) is None
