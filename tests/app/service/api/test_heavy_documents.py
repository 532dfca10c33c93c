"""A client that sends a document which takes long to read, and hangs up."""

from __future__ import annotations

import json
import socket
import time
from base64 import b64encode

import httpx
import psutil

from tests.app.chat.attachments.files import pdf_of
from tests.app.chat.attachments.hostile_files import repeated_page_pdf
from tests.app.child_processes import children_that_run
from tests.app.raw_http import head
from tests.app.running import RunningService


def _body(pdf: bytes) -> dict[str, object]:
    file = {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{b64encode(pdf).decode()}"}
    return {"messages": [{"role": "user", "content": [{"type": "file", "file": file}]}], "max_tokens": 2}


def test_reading_a_document_ends_when_its_sender_hangs_up_and_others_get_their_turn(service: RunningService) -> None:
    body = json.dumps(_body(repeated_page_pdf(4_999, 5_000))).encode()
    request = head("POST", "/v1/chat/completions", "Host: localhost", f"Content-Length: {len(body)}")
    port = httpx.URL(service.url).port
    assert port is not None
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(request + body)
        started_s = time.monotonic()
        while not (parsers := children_that_run("attachments.parse", psutil.Process(service.process.pid))):
            assert time.monotonic() - started_s < 60
            time.sleep(0.02)
    gone, _ = psutil.wait_procs(parsers, timeout=20)  # sooner than its budget ends, which is ten times as long
    assert gone == parsers
    answer = service.http.post("/v1/chat/completions", json=_body(pdf_of(["Whales"])))
    assert answer.status_code == 200
