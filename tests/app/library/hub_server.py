"""A Hugging Face hub in a few threads, for tests: real HTTP on loopback, with faults on request.

It speaks /api/models, /api/models/ORG/REPO and its tree, and /ORG/REPO/resolve/REVISION/FILE, which redirects files in
LFS to a storage of another origin with ranges and etags. Gated repositories, links that expire, a limit of speed, TLS.
By hand: `python tests/app/library/hub_server.py FOLDER`, where FOLDER holds ORG/REPO/FILE; it says its address.
"""

from __future__ import annotations

import argparse
import json
import mmap
import re
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.app.library.hub_faults import FAULTS, Injection, Reply
from tests.app.library.hub_repos import HubFile, HubRepo

__all__ = ["CERTIFICATE", "HubServer", "Request"]

CERTIFICATE = Path(__file__).with_name("hub_certificate.pem")  # its own authority; for localhost and 127.0.0.1
_BLOCK_BYTES = 256 << 10
_THROTTLED_BLOCK_BYTES = 16 << 10


@dataclass
class Request:
    """A request to one of the servers, and its answer."""

    origin: str
    method: str
    path: str
    headers: dict[str, str]
    status: int = 0
    n_sent: int = 0


class HubServer:
    """A context manager: a hub of `repos` at `url`, its storage at another origin, and a stranger at a third.

    `plain` files lie at the stranger's /plain/NAME, each with the headers that it is sent with.
    `readers` are the tokens that gated repositories let in, `members` those that are known at all. What is in
    `injections` strikes; `log` says what came. `bytes_per_s` limits each connection's bodies, 0 does not.
    """

    def __init__(self, *repos: HubRepo, is_tls: bool = False) -> None:
        self.repos = {repo.id: repo for repo in repos}
        self.injections: list[Injection] = []
        self.log: list[Request] = []
        self.plain: dict[str, tuple[bytes, dict[str, str]]] = {}
        self.members: set[str] = set()
        self.readers: set[str] = set()
        self.bytes_per_s = 0
        self.lock = threading.Lock()
        self.is_closing = threading.Event()
        self._signature = 0
        self._tls = _tls_context() if is_tls else None
        self._servers = {name: self._server(name) for name in ("hub", "storage", "stranger")}

    @property
    def url(self) -> str:
        return self._url("hub")

    @property
    def storage_url(self) -> str:
        return self._url("storage")

    @property
    def stranger_url(self) -> str:
        return self._url("stranger")

    def inject(self, kind: str, **how: Any) -> None:
        """Let a fault of `kind`, a key of `FAULTS`, strike the next requests; see `Injection`."""
        assert kind in FAULTS
        with self.lock:
            self.injections.append(Injection(kind, **how))

    def struck(self, stage: str) -> Injection | None:
        with self.lock:
            return next((injection for injection in self.injections if injection.strikes(stage)), None)

    def expire_links(self) -> None:
        """Refuse from now on the links to the storage that were given out."""
        self._signature += 1

    @property
    def signature(self) -> str:
        return f"signature={self._signature}"

    def file(self, sha256: str) -> HubFile | None:
        every = (file for repo in self.repos.values() for file in repo.files.values())
        return next((file for file in every if file.sha256 == sha256), None)

    def n_sent(self, origin: str = "storage") -> int:
        """How many bytes of bodies `origin` sent."""
        return sum(request.n_sent for request in self.log if request.origin == origin)

    def __enter__(self) -> HubServer:
        for server in self._servers.values():
            threading.Thread(target=partial(server.serve_forever, poll_interval=0.02), daemon=True).start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.is_closing.set()
        for server in self._servers.values():
            server.shutdown()
            server.server_close()

    def _url(self, name: str) -> str:
        host = "127.0.0.1" if name == "hub" else "localhost"  # clients tell hosts apart by name, not by port
        return f"{'https' if self._tls else 'http'}://{host}:{self._servers[name].server_address[1]}"

    def _server(self, name: str) -> ThreadingHTTPServer:
        server = _QuietServer(("127.0.0.1", 0), partial(HubHandler, self, name, self._tls))
        server.daemon_threads = True
        return server


class _QuietServer(ThreadingHTTPServer):
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors: tests have clients that disconnect."""


class HubHandler(BaseHTTPRequestHandler):
    """Answers one connection to the hub, its storage or the stranger."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 0

    def __init__(self, hub: HubServer, origin: str, tls: ssl.SSLContext | None, *connection: Any) -> None:
        self.hub = hub
        self.origin = origin
        self._tls = tls
        super().__init__(*connection)

    def setup(self) -> None:
        if self._tls is not None:
            if self.hub.struck("handshake"):
                self.request.sendall(b"HTTP/1.0 400 no TLS here\r\n\r\n")
            self.request = self._tls.wrap_socket(self.request, server_side=True)
        super().setup()

    def finish(self) -> None:
        super().finish()
        self.connection.close()  # the server knows of the socket below TLS only

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self.entry = Request(self.origin, self.command, self.path, {k.lower(): v for k, v in self.headers.items()})
        with self.hub.lock:
            self.hub.log.append(self.entry)
        path = unquote(urlsplit(self.path).path)
        for pattern, answer in _ROUTES[self.origin]:
            if match := re.fullmatch(pattern, path):
                answer(self, **match.groupdict())
                return
        self.send_text(404, "Not Found", {"X-Error-Code": "EntryNotFound"})

    # Answers

    def answer_models(self) -> None:
        if self._is_struck("list"):
            return
        asked = self.asked()
        words = asked.get("search", "").lower().split()
        found = [repo for repo in self.hub.repos.values() if all(word in repo.id.lower() for word in words)]
        if asked.get("sort") == "trendingScore":  # largest first; any other order is that of `repos`
            found.sort(key=lambda repo: -repo.more.get("trendingScore", 0))
        has_siblings = asked.get("full", "") in ("true", "True", "1")
        said = [repo.info(has_siblings=has_siblings) for repo in found][: int(asked.get("limit", "1000"))]
        self.send_json(said)

    def answer_model(self, repo: str, revision: str = "main") -> None:
        if (held := self._held(repo)) is not None:
            self.send_json(held.info(has_blobs=self.asked().get("blobs", "").lower() == "true"))

    def answer_tree(self, repo: str, revision: str = "main") -> None:
        if (held := self._held(repo)) is not None:
            self.send_json([file.tree_entry() for file in held.files.values()])

    def answer_resolve(self, repo: str, revision: str, path: str) -> None:
        held = self._held(repo)
        if held is None or not self._is_let_in(held):
            return
        file = held.files.get(path)
        if file is None:
            self.send_text(404, "Entry not found", {"X-Error-Code": "EntryNotFound"})
            return
        headers = {"X-Repo-Commit": held.commit, "Accept-Ranges": "bytes"}
        if file.is_lfs:
            linked = {"X-Linked-Size": str(file.n_bytes), "X-Linked-Etag": f'"{file.sha256}"'}
            location = f"{self.hub.storage_url}/{file.sha256}?{self.hub.signature}"
            headers |= linked | {"Location": location, "ETag": f'"{file.sha256}"'}
            self._send("resolve", Reply(302, headers, memoryview(b""), 0, 0, 0))
        else:
            self._send_file("resolve", file, headers | {"ETag": f'"{file.blob_id}"'})

    def answer_content(self, sha256: str) -> None:
        file = self.hub.file(sha256)
        if file is None:
            self.send_text(404, "no such blob", {})
        elif self.origin == "storage" and urlsplit(self.path).query != self.hub.signature:
            self.send_text(403, "this link has expired", {})
        else:
            stage = "content" if self.origin == "storage" else "stranger"
            self._send_file(stage, file, {"ETag": f'"stored-{sha256[:32]}"', "Accept-Ranges": "bytes"})

    def answer_plain(self, name: str) -> None:
        data, headers = self.hub.plain[name]
        self._send_file("stranger", HubFile(name, data), headers)

    def asked(self) -> dict[str, str]:
        return {name: values[-1] for name, values in parse_qs(urlsplit(self.path).query).items()}

    def _held(self, repo: str) -> HubRepo | None:
        """Return the repository, or None after answering that there is none."""
        if self.path.startswith("/api/") and self._is_struck("api"):
            return None
        held = self.hub.repos.get(repo)
        if held is None:
            status = 404 if self._token() in self.hub.members else 401
            self.send_text(status, "Repository not found", {"X-Error-Code": "RepoNotFound"})
        return held

    def _is_struck(self, stage: str) -> bool:
        """Whether a fault answered instead of the hub."""
        injection = self.hub.struck(stage)
        if injection is not None:
            FAULTS[injection.kind](self, Reply(200, {}, memoryview(b"{}"), 0, 2, 2), injection)
        return injection is not None

    def _is_let_in(self, repo: HubRepo) -> bool:
        if not repo.gated or self._token() in self.hub.readers:
            return True
        is_known = self._token() in self.hub.members
        message = f"Access to model {repo.id} is restricted" + (
            " and you are not in the authorized list." if is_known else ". You must be authenticated to access it."
        )
        status = 403 if is_known else 401
        self.send_text(status, message, {"X-Error-Code": "GatedRepo", "X-Error-Message": message})
        return False

    def _token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    # How it is sent

    def _send_file(self, stage: str, file: HubFile, headers: dict[str, str]) -> None:
        n_total = file.n_bytes
        begin, end = 0, n_total
        status = 200
        mark = headers.get("ETag", headers.get("Last-Modified"))
        is_current = self.headers.get("If-Range", mark) == mark
        if (match := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))) and is_current:
            begin, end = int(match[1]), min(int(match[2] or n_total) + 1, n_total)
            if begin >= end:
                self.send_text(416, "", {"Content-Range": f"bytes */{n_total}"})
                return
            status = 206
            headers = headers | {"Content-Range": f"bytes {begin}-{end - 1}/{n_total}"}
        if isinstance(file.data, bytes):
            self._send(stage, Reply(status, headers, memoryview(file.data), begin, end, n_total))
            return
        with file.data.open("rb") as source, mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            view = memoryview(mapped)
            try:
                self._send(stage, Reply(status, headers, view, begin, end, n_total))
            finally:
                view.release()

    def _send(self, stage: str, reply: Reply) -> None:
        injection = self.hub.struck(stage)
        if injection is not None:
            FAULTS[injection.kind](self, reply, injection)
            return
        self.send_head(reply)
        self.send_data(reply.body)

    def send_head(self, reply: Reply) -> None:
        self.entry.status = reply.status
        self.send_response(reply.status)
        for name, value in {**reply.headers, "Content-Length": str(reply.end - reply.begin)}.items():
            self.send_header(name, value)
        self.end_headers()

    def send_data(self, data: memoryview) -> None:
        if self.command == "HEAD":
            return
        rate = self.hub.bytes_per_s
        n_block = _THROTTLED_BLOCK_BYTES if rate else _BLOCK_BYTES
        for begin in range(0, len(data), n_block):
            with data[begin : begin + n_block] as block:
                self.entry.n_sent += len(block)  # before it is received: whoever has it may ask how much was sent
                try:
                    self.connection.sendall(block)
                except OSError:
                    self.entry.n_sent -= len(block)
                    raise
                if rate:
                    time.sleep(len(block) / rate)

    def send_text(self, status: int, text: str, headers: dict[str, str]) -> None:
        body = memoryview(text.encode())
        self.send_head(Reply(status, headers, body, 0, len(body), len(body)))
        if self.command != "HEAD":
            self.connection.sendall(body)

    def send_json(self, said: object) -> None:
        self.send_text(200, json.dumps(said), {"Content-Type": "application/json; charset=utf-8"})

    def hang_up(self) -> None:
        self.close_connection = True
        self.connection.close()

    def wait_for_the_end(self) -> None:
        """Send nothing until the client disconnects or the hub closes."""
        self.connection.settimeout(0.05)
        while not self.hub.is_closing.is_set():
            try:
                if not self.connection.recv(1024):
                    return
            except TimeoutError:
                continue
            except OSError:
                return

    def log_message(self, *_message: Any) -> None:
        """Print nothing; requests are in the hub's log."""


Answer = Callable[..., None]
_REPO = r"(?P<repo>[^/]+/[^/]+)"
_CONTENT: tuple[str, Answer] = (r"/(?P<sha256>[0-9a-f]{64})", HubHandler.answer_content)
_ROUTES: dict[str, list[tuple[str, Answer]]] = {
    "hub": [
        (r"/api/models", HubHandler.answer_models),
        (rf"/api/models/{_REPO}(/revision/(?P<revision>[^/]+))?", HubHandler.answer_model),
        (rf"/api/models/{_REPO}/tree/(?P<revision>[^/]+)", HubHandler.answer_tree),
        (rf"/{_REPO}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", HubHandler.answer_resolve),
    ],
    "storage": [_CONTENT],
    "stranger": [_CONTENT, (r"/plain/(?P<name>[^/]+)", HubHandler.answer_plain)],
}


def _tls_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    return context


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    repos: dict[str, dict[str, bytes | Path]] = {}
    for path in sorted(folder.glob("*/*/*")):
        repos.setdefault(f"{path.parent.parent.name}/{path.parent.name}", {})[path.name] = path
    with HubServer(*(HubRepo.of(name, files) for name, files in repos.items())) as hub:
        print(hub.url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
