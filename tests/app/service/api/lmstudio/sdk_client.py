"""A client that sends what LM Studio's SDKs send, frame by frame."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests.patience import PATIENCE_S

__all__ = ["AUTHENTICATION", "SdkClient", "connected", "history", "of_model", "predict", "stack"]

# What the Python SDK 1.5.0 sends first; it makes both up.
AUTHENTICATION = {
    "authVersion": 1,
    "clientIdentifier": "a90078ec-57a6-4e29-bf0d-dfd19cd15020",
    "clientPasskey": "436a89f8-94ba-4399-8651-65a5978cd39b",
}


class SdkClient:
    """An authenticated connection."""

    def __init__(self, websocket: ClientConnection) -> None:
        self._websocket = websocket
        self._ids = count(1)
        self.warnings: list[str] = []

    def send(self, frame: Mapping[str, Any]) -> None:
        self.send_text(json.dumps(frame))

    def send_text(self, text: str) -> None:
        self._websocket.send(text)

    def receive(self) -> dict[str, Any]:
        """Return the next frame that is no warning."""
        while True:
            frame = json.loads(self._websocket.recv(timeout=PATIENCE_S))
            if frame["type"] != "communicationWarning":
                return dict(frame)
            self.warnings.append(frame["warning"])

    def call(self, endpoint: str, parameter: object = None) -> Any:
        """Return the frame that answers a call; the parameter is left out as the SDKs leave it out."""
        call_id = next(self._ids)
        frame = {"type": "rpcCall", "endpoint": endpoint, "callId": call_id}
        self.send(frame if parameter is None else {**frame, "parameter": parameter})
        answer = self.receive()
        assert answer["callId"] == call_id
        return answer

    def result(self, endpoint: str, parameter: object = None) -> Any:
        answer = self.call(endpoint, parameter)
        assert answer["type"] == "rpcResult", answer
        return answer.get("result")

    def open(self, endpoint: str, parameter: object = None) -> int:
        channel_id = next(self._ids)
        frame = {"type": "channelCreate", "endpoint": endpoint, "channelId": channel_id}
        self.send(frame if parameter is None else {**frame, "creationParameter": parameter})
        return channel_id

    def packets(self, endpoint: str, parameter: object = None) -> list[dict[str, Any]]:
        """Return the packets of a channel, to its end."""
        return list(self.rest_of(self.open(endpoint, parameter)))

    def rest_of(self, channel_id: int) -> Iterator[dict[str, Any]]:
        while (frame := self.receive())["type"] == "channelSend":
            assert frame["channelId"] == channel_id
            yield frame["message"]
        assert frame == {"type": "channelClose", "channelId": channel_id}

    def error(self, endpoint: str, parameter: object) -> dict[str, Any]:
        """Return the error of a channel."""
        self.open(endpoint, parameter)
        while (frame := self.receive())["type"] == "channelSend":
            pass
        assert frame["type"] == "channelError", frame
        return dict(frame["error"])


@contextmanager
def connected(
    url: str, namespace: str, first: Mapping[str, Any] = AUTHENTICATION, **headers: str
) -> Iterator[SdkClient]:
    """Connect to a namespace and authenticate."""
    address = f"{url.replace('http', 'ws', 1)}/{namespace}"
    with connect(address, additional_headers=headers, compression=None, proxy=None) as websocket:
        websocket.send(json.dumps(first))
        answer = json.loads(websocket.recv(timeout=PATIENCE_S))
        assert answer == {"success": True}, answer
        yield SdkClient(websocket)


def of_model(name: str) -> dict[str, Any]:
    """Return a specifier as the Python SDK 1.5.0 sends it."""
    return {"type": "query", "query": {"identifier": name}}


def stack(**fields: Any) -> dict[str, Any]:
    """Return a configuration; `__` stands for a dot in a key."""
    listed = [{"key": key.replace("__", "."), "value": value} for key, value in fields.items()]
    return {"layers": [{"layerName": "apiOverride", "config": {"fields": listed}}]}


def history(*messages: tuple[str, Any]) -> dict[str, Any]:
    """Return a conversation of (role, text or parts)."""
    parts = [(role, [{"type": "text", "text": text}] if isinstance(text, str) else text) for role, text in messages]
    return {"messages": [{"role": role, "content": content} for role, content in parts]}


def predict(text: str, model: str = "tiny", **fields: Any) -> dict[str, Any]:
    """Return the parameter of `predict` for one message of the user."""
    config = stack(**{f"llm__prediction__{key}": value for key, value in fields.items()})
    return {"modelSpecifier": of_model(model), "history": history(("user", text)), "predictionConfigStack": config}
