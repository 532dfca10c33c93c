from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import ExitStack

import httpx
import pytest

from app.protocol.errors import ServiceError
from app.service import server
from app.service.server import listen, listen_for_clients
from app.settings.settings import Settings
from tests.app.running import RunningService


def _free_port() -> int:
    with listen("127.0.0.1", 0) as listener:
        return int(listener.getsockname()[1])


def test_without_a_setting_only_this_machine_is_listened_to() -> None:
    with ExitStack() as stack:
        usual = stack.enter_context(listen(Settings().host, 0))
        others = listen_for_clients(Settings().host, stack)
        assert {each.getsockname()[0] for each in (usual, *others.values())} == {"127.0.0.1"}


def test_a_port_in_use_is_refused_with_a_remedy() -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(ServiceError, match=f"Port {port} .* is in use.*--port"):
            listen("127.0.0.1", port)


def test_an_owned_service_takes_another_port_instead() -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with listen("127.0.0.1", port, or_any=True) as second:
            assert second.getsockname()[1] != port


def test_an_address_that_is_not_ours_is_refused() -> None:
    with pytest.raises(ServiceError, match=r"Cannot listen on 192\.0\.2\.1"):
        listen("192.0.2.1", 0)


def test_answers_are_sent_without_delay() -> None:
    """A socket of no named protocol is one that asyncio leaves to collect what is sent."""
    with listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_a_clients_port_in_use_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with listen("127.0.0.1", 0) as theirs, ExitStack() as stack:
        taken, free = theirs.getsockname()[1], _free_port()
        monkeypatch.setattr(server, "CLIENTS_PORTS", {taken: "one", free: "other"})
        assert list(listen_for_clients("127.0.0.1", stack)) == [free]


@pytest.mark.slow
def test_a_service_also_answers_on_clients_ports(start_service: Callable[..., RunningService]) -> None:
    before = {port for port in server.CLIENTS_PORTS if _is_free(port)}
    own = start_service(also="true")
    for port in before:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
            assert http.get("/api/version").json() == own.http.get("/api/version").json()


def _is_free(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return False
    except OSError:
        return True
