from __future__ import annotations

import socket

import pytest

from app.engine.load.rpc import check_reachable, exposure_warning
from app.settings.parsing import parse_rpc_endpoints
from quantizer.errors import EngineError, UsageError


def test_servers_are_separated_by_commas_and_each_counts_once() -> None:
    assert parse_rpc_endpoints("") == ()
    assert parse_rpc_endpoints("a.local:1, 10.0.0.2:50052,a.local:1") == ("a.local:1", "10.0.0.2:50052")


@pytest.mark.parametrize("text", ["host", "host:", ":1", "host:0", "host:65536", "http://host:1", "[::1]:1", "-o:1"])
def test_invalid_servers_are_errors(text: str) -> None:
    with pytest.raises(UsageError, match="no RPC server"):
        parse_rpc_endpoints(text)


def test_a_server_that_does_not_answer_is_an_error() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(EngineError, match=f"{endpoint} cannot be reached"):
            check_reachable([endpoint])
        listener.listen()
        check_reachable([endpoint])


def test_only_servers_on_other_machines_have_a_warning() -> None:
    assert exposure_warning(["127.0.0.1:1", "localhost:2"]) == ""
    assert "10.0.0.2:50052 can read and change" in exposure_warning(["127.0.0.1:1", "10.0.0.2:50052"])
