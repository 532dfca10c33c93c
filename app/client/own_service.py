"""Connections to a service of this user and data folder only: each proves itself before anything is sent through it.

Owns the exchange on a new connection (`app.common.service_identity` has the proofs). Every client of a local service
uses this transport, the launcher makes them.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterable
from typing import Any, Final

import h11
import httpcore

from app.client.httpx_alone import httpx
from app.common.service_identity import IDENTITY_PATH, Address, ServiceIdentity, new_challenge
from quantizer.system.sockets import listening_users

_PROOF_TIMEOUT_S: Final = 30.0  # a service on a busy machine may be slow
_MAX_BODY_BYTES: Final = 4096
_READ_BYTES: Final = 4096
_NO_ANSWER: Final = (h11.ProtocolError, httpcore.ReadError, httpcore.WriteError)
_NO_PROOF: Final = (ValueError, LookupError, TypeError, RecursionError)  # what JSON of another program raises


class NotOursError(httpcore.ConnectError):
    """What listens there is no service of this user and data folder. `is_localllm`: it is another one's."""

    def __init__(self, *, is_localllm: bool) -> None:
        super().__init__("It is no service of this user and data folder.")
        self.is_localllm = is_localllm


class OwnServiceTransport(httpx.AsyncHTTPTransport):
    """httpx's transport with connections that have proved to be to the service of `identity`."""

    def __init__(self, identity: ServiceIdentity) -> None:
        # Not httpx's own: that one takes no backend, and reads the certificates for TLS, which is not needed here.
        self._pool = httpcore.AsyncConnectionPool(
            max_connections=None, keepalive_expiry=5.0, network_backend=_ProvingBackend(identity)
        )


class _ProvingBackend(httpcore.AsyncNetworkBackend):
    """Opens TCP connections and has each prove itself."""

    def __init__(self, identity: ServiceIdentity) -> None:
        self._identity = identity
        self._backend = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the name of httpcore's parameter
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        stream = await self._backend.connect_tcp(host, port, timeout, local_address, socket_options)
        try:
            async with asyncio.timeout(_PROOF_TIMEOUT_S):
                await self._check(stream, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        except BaseException as error:
            await stream.aclose()
            if isinstance(error, TimeoutError):
                raise NotOursError(is_localllm=False) from error
            raise
        return stream

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)

    async def _check(self, stream: httpcore.AsyncNetworkStream, host: str) -> None:
        """Raise NotOursError where the other end of `stream` proves nothing."""
        peer: Address = stream.get_extra_info("server_addr")[:2]
        challenge = new_challenge()
        try:
            answer = json.loads(await _get(stream, host, f"{IDENTITY_PATH}?challenge={challenge}"))
            proof = answer["proof"]
        except (*_NO_ANSWER, *_NO_PROOF):
            raise NotOursError(is_localllm=False) from None
        users = listening_users(*peer)  # one who could read the key, as on a network home, is another user still
        is_same_user = not users or os.geteuid() in users
        if not (is_same_user and self._identity.is_proof(proof, "this is the service", challenge, peer)):
            raise NotOursError(is_localllm=True)


async def _get(stream: httpcore.AsyncNetworkStream, host: str, target: str) -> bytes:
    """Return the body of the response to a GET, and leave the connection open for more. Raises h11.ProtocolError for
    anything else than an answer that can be followed by another one."""
    connection = h11.Connection(h11.CLIENT)
    head = connection.send(h11.Request(method="GET", target=target, headers=[("Host", host)]))
    await stream.write((head or b"") + (connection.send(h11.EndOfMessage()) or b""))
    body = b""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await stream.read(_READ_BYTES))
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > _MAX_BODY_BYTES:
                raise h11.RemoteProtocolError("The answer is too long.")
        elif isinstance(event, h11.EndOfMessage):
            break
    connection.start_next_cycle()  # raises where the other end closes it
    return body
