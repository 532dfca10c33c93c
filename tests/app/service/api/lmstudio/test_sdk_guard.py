"""A websocket passes the same checks as a request: a web page must not connect."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.sync.client import connect

from app.common.keys import KeyFile, KeyScope, lmstudio_token
from tests.app.running import RunningService
from tests.app.service.api.lmstudio.sdk_client import AUTHENTICATION, connected, of_model, predict, stack
from tests.patience import PATIENCE_S

KEY = "llm-a-key-of-this-test"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys")


@pytest.fixture(scope="module")
def keyed(start_service: Callable[..., RunningService], folder: Path) -> RunningService:
    return start_service(data_dir=str(folder), api_key=KEY)


def _refusal(service: RunningService, **headers: str) -> int:
    """Return the status with which a handshake is refused, before any websocket exists."""
    host = headers.pop("Host", "")
    address = service.url.replace("http", "ws") + "/llm"
    with (
        pytest.raises(InvalidStatus) as refused,
        connect(
            address.replace("127.0.0.1", host) if host else address,
            sock=_socket(service),
            additional_headers=headers,
            compression=None,
            proxy=None,
        ),
    ):
        pass
    assert json.loads(refused.value.response.body or b"")["error"]["message"]
    return refused.value.response.status_code


def _socket(service: RunningService) -> Any:
    return socket.create_connection(("127.0.0.1", int(service.url.rpartition(":")[2])))


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:3000", "http://127.0.0.1:1234"])
def test_a_web_page_cannot_connect(service: RunningService, origin: str) -> None:
    assert _refusal(service, Origin=origin) == 403


def test_another_name_of_this_machine_cannot_be_rebound(service: RunningService) -> None:
    assert _refusal(service, Host="evil.example") == 403


def test_a_page_that_the_settings_allow_connects(start_service: Callable[..., RunningService]) -> None:
    service = start_service(origins="https://chat.example")
    with connected(service.url, "llm", Origin="https://chat.example") as client:
        assert client.result("listLoaded")
    assert _refusal(service, Origin="https://other.example") == 403


def test_a_key_is_required_in_the_handshake_or_the_first_message(keyed: RunningService) -> None:
    first = {**AUTHENTICATION, "clientPasskey": KEY}
    with connected(keyed.url, "llm", first) as client:
        assert client.result("listLoaded")
    with connected(keyed.url, "llm", Authorization=f"Bearer {KEY}") as client:
        assert client.result("listLoaded")
    assert _refusal(keyed, Authorization="Bearer wrong") == 401
    assert keyed.http.get("/lmstudio-greeting", headers={"authorization": ""}).status_code == 200


@pytest.mark.parametrize("first", [AUTHENTICATION, {}, {"clientPasskey": 3}, {"clientPasskey": "x" * 5000}])
def test_without_a_key_nothing_is_answered(keyed: RunningService, first: dict[str, Any]) -> None:
    """The SDKs make up an identifier and a passkey where they are given none."""
    with connect(keyed.url.replace("http", "ws") + "/llm", compression=None, proxy=None) as websocket:
        websocket.send(json.dumps(first))
        refused = json.loads(websocket.recv(timeout=PATIENCE_S))
        assert refused["success"] is False
        assert isinstance(refused["error"], str)
        with pytest.raises(ConnectionClosedError, match="1008"):
            websocket.recv(timeout=PATIENCE_S)


def test_a_key_in_the_form_of_lm_studios_tokens_is_accepted(keyed: RunningService) -> None:
    """The SDKs 1.6 (Python) and 2.0 (JavaScript) take `sk-lm-<8>:<20>` only, and send its two halves."""
    token = lmstudio_token(KEY)
    identifier, _, passkey = token.removeprefix("sk-lm-").partition(":")
    first = {"authVersion": 1, "clientIdentifier": identifier, "clientPasskey": passkey}
    with connected(keyed.url, "system", first) as client:
        assert client.result("version")["version"]
    headers = {"authorization": f"Bearer {token}"}
    assert keyed.http.get("/v1/models", headers=headers).status_code == 200


@pytest.mark.slow
def test_loading_and_downloading_need_the_scope_manage(keyed: RunningService, folder: Path) -> None:
    asking = KeyFile(folder / "keys.json").add("asks", {KeyScope.INFER})
    first = {**AUTHENTICATION, "clientPasskey": asking.secret}
    with connected(keyed.url, "llm", first) as client:
        assert client.packets("predict", predict("<say>x</say>"))[-1]["type"] == "success"
        assert client.packets("getOrLoad", {"identifier": "tiny", "loadConfigStack": stack()})
        error = client.error("loadModel", {"modelKey": "tiny", "loadConfigStack": stack()})
        assert error["errorData"] == {"code": "insufficient_scope"}
        unload = client.call("unloadModel", {"identifier": "tiny"})
        assert unload["error"]["errorData"] == {"code": "insufficient_scope"}
        assert client.result("getModelInfo", {"specifier": of_model("tiny"), "throwIfNotFound": True})
    with connected(keyed.url, "repository", first) as client:
        error = client.error("downloadModel", {"downloadIdentifier": "org/repo"})
        assert error["errorData"] == {"code": "insufficient_scope"}
