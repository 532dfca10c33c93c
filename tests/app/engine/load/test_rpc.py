from __future__ import annotations

import socket

import pytest

from app.engine.load.machine import check_reachable, exposure_warning
from quantizer.system.errors import EngineError


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
