"""The official OpenAI client uploads files and runs batches against a real server."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from app.service.api.batches.batches import BatchStore
from tests.app.killed_writer import partial_files
from tests.app.running import RunningService
from tests.app.service.api import sdk

if TYPE_CHECKING:
    import openai
    from openai.types import Batch

CHAT = "/v1/chat/completions"
ENDED = ("failed", "completed", "expired", "cancelled")
StartService = Callable[..., RunningService]


def lines(n_requests: int, n_tokens: int = 3, **changes: Any) -> bytes:
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": n_tokens, "ignore_eos": True}
    found = [
        {"custom_id": f"r{number}", "method": "POST", "url": CHAT, "body": {**body, **changes}}
        for number in range(n_requests)
    ]
    return b"".join(json.dumps(line).encode() + b"\n" for line in found)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("batches")


@pytest.fixture(scope="module")
def batch_service(start_service: StartService, folder: Path) -> RunningService:
    return start_service(data_dir=str(folder))


@pytest.fixture(scope="module")
def client(batch_service: RunningService) -> Iterator[openai.OpenAI]:
    with sdk.openai.OpenAI(base_url=f"{batch_service.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def begun(client: openai.OpenAI, content: bytes, **options: Any) -> Batch:
    stored = client.files.create(file=("in.jsonl", content), purpose="batch")
    given: Any = {"endpoint": CHAT, "completion_window": "24h", **options}
    return client.batches.create(input_file_id=stored.id, **given)


def ended(client: openai.OpenAI, batch_id: str, timeout_s: float = 120.0) -> Batch:
    deadline_s = time.monotonic() + timeout_s
    while (batch := client.batches.retrieve(batch_id)).status not in ENDED:
        assert time.monotonic() < deadline_s, f"never ended: {batch}"
        time.sleep(0.05)
    return batch


def content_of(client: openai.OpenAI, file_id: str | None) -> dict[str, dict[str, Any]]:
    """Return the lines of a file by custom id, of which none is there twice."""
    assert file_id is not None
    found = [json.loads(line) for line in client.files.content(file_id).read().splitlines()]
    assert len({line["custom_id"] for line in found}) == len(found)
    return {line["custom_id"]: line for line in found}


@pytest.mark.slow
def test_a_batch_is_answered_into_an_output_and_an_error_file(client: openai.OpenAI, folder: Path) -> None:
    wrong = {"custom_id": "wrong", "method": "POST", "url": CHAT, "body": {"messages": [], "max_tokens": 1}}
    batch = begun(client, lines(5) + json.dumps(wrong).encode(), metadata={"for": "a test"})
    assert batch.status == "validating"
    batch = ended(client, batch.id)
    assert batch.status == "completed"
    assert batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": 6, "completed": 5, "failed": 1}
    assert batch.metadata == {"for": "a test"}
    assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at < batch.expires_at  # type: ignore[operator]
    answers = content_of(client, batch.output_file_id)
    assert sorted(answers) == ["r0", "r1", "r2", "r3", "r4"]
    assert all(line["response"]["body"]["usage"]["completion_tokens"] == 3 for line in answers.values())
    (failed,) = content_of(client, batch.error_file_id).values()
    assert (failed["custom_id"], failed["response"]["status_code"]) == ("wrong", 400)
    assert "messages" in failed["error"]["message"]
    output = client.files.retrieve(str(batch.output_file_id))
    assert (output.purpose, output.filename) == ("batch_output", f"{batch.id}_output.jsonl")
    assert output.bytes == len(client.files.content(output.id).read())
    left = [path.name for path in (folder / "batches").iterdir() if batch.id in path.name]
    assert left == [f"{batch.id}.json"]
    if sys.platform != "win32":
        stored = [*(folder / "batches").rglob("*")]
        modes = {stat.S_IMODE(path.stat().st_mode) for path in stored if path.is_file()}
        assert modes == {0o600}
        assert {stat.S_IMODE(path.stat().st_mode) for path in stored if path.is_dir()} == {0o700}


def test_a_batch_is_a_job_of_the_service(client: openai.OpenAI, batch_service: RunningService) -> None:
    batch = begun(client, lines(1))
    ended(client, batch.id)
    jobs = batch_service.http.get("/api/localllm/jobs").json()["jobs"]
    job = next(job for job in jobs if batch.id in job["arguments"]["output"])
    assert (job["kind"], job["state"], job["result"]["answered"]) == ("batch", "done", 1)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings", "/v1/responses"])
def test_each_endpoint_has_batches(client: openai.OpenAI, path: Any) -> None:
    bodies = {"prompt": "a", "max_tokens": 2, "input": "a", "max_output_tokens": 16}
    fields = {"/v1/completions": ("prompt", "max_tokens"), "/v1/embeddings": ("input",)}
    body = {name: bodies[name] for name in fields.get(path, ("input", "max_output_tokens"))}
    content = json.dumps({"custom_id": "1", "method": "POST", "url": path, "body": body}).encode()
    batch = ended(client, begun(client, content, endpoint=path).id)
    assert batch.status == "completed"
    answers = content_of(client, batch.output_file_id or batch.error_file_id)
    assert answers["1"]["response"]["status_code"] in (200, 400)  # the tiny model may make no embeddings


@pytest.mark.parametrize(
    ("content", "line", "code"),
    [
        (lines(2) + lines(1), 3, "duplicate_custom_id"),
        (lines(1) + b"{\n", 2, "invalid_json_line"),
        (lines(1).replace(CHAT.encode(), b"/v1/completions"), 1, "mismatched_endpoint"),
        (b"\n", None, "empty_file"),
    ],
)
def test_a_file_that_is_wrong_fails_with_the_numbers_of_its_lines(
    client: openai.OpenAI, folder: Path, content: bytes, line: int | None, code: str
) -> None:
    batch = begun(client, content)
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    (fault,) = batch.errors.data
    assert (fault.line, fault.code) == (line, code)
    assert str(folder) not in str(batch)


def test_a_cancelled_batch_keeps_its_answers(client: openai.OpenAI, batch_service: RunningService) -> None:
    batch = begun(client, lines(500, n_tokens=20))
    while not (client.batches.retrieve(batch.id).request_counts or batch.request_counts).completed:  # type: ignore[union-attr]
        time.sleep(0.05)
    with pytest.raises(sdk.openai.BadRequestError, match="needs this file"):
        client.files.delete(batch.input_file_id)
    assert client.batches.cancel(batch.id).status == "cancelling"
    batch = ended(client, batch.id)
    assert batch.status == "cancelled"
    assert batch.request_counts is not None
    n_answered = batch.request_counts.completed
    assert 0 < n_answered < 500
    assert len(content_of(client, batch.output_file_id)) == n_answered
    assert batch.error_file_id is None
    with pytest.raises(sdk.openai.BadRequestError, match="cancelled already"):
        client.batches.cancel(batch.id)
    batch_service.wait_until(lambda model: model["n_running"] == 0)


def test_batches_and_files_are_listed_in_pages_the_newest_first(client: openai.OpenAI) -> None:
    made = [begun(client, b"{").id for _ in range(3)]
    listed = [batch.id for batch in client.batches.list(limit=2)]  # the client asks for the next pages itself
    assert listed[:3] == made[::-1]
    page = client.batches.list(limit=2)
    assert page.has_more
    assert [batch.id for batch in client.batches.list(limit=1, after=page.data[1].id).data] == [made[0]]
    files = [file.id for file in client.files.list(purpose="batch", order="asc", limit=2)]
    assert len(files) == len(set(files)) >= 3
    assert {file.purpose for file in client.files.list()} <= {"batch", "batch_output"}


def test_files_are_described_read_and_deleted(client: openai.OpenAI) -> None:
    content = bytes(range(256)) * 5000  # any bytes, more than memory holds of an upload
    name = "../../etc/pass\x1b[2Jwd\r\n.jsonl"
    stored = client.files.create(
        file=(name, content), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert (stored.bytes, stored.status, stored.expires_at) == (len(content), "processed", stored.created_at + 3600)
    assert "\x1b" not in stored.filename
    assert client.files.retrieve(stored.id) == stored
    assert client.files.content(stored.id).read() == content
    assert client.files.delete(stored.id).deleted
    for ask in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(sdk.openai.NotFoundError):
            ask(stored.id)


@pytest.mark.parametrize("made", ["file-" + "0" * 32, "../files/x", "%2e%2e%2fbatches", "file-", "x" * 300, ".json"])
def test_an_id_is_never_a_path(batch_service: RunningService, made: str) -> None:
    for path in (f"/v1/files/{made}", f"/v1/files/{made}/content", f"/v1/batches/{made}"):
        assert batch_service.http.get(path).status_code == 404
    body = {"input_file_id": made, "endpoint": CHAT, "completion_window": "24h"}
    assert batch_service.http.post("/v1/batches", json=body).status_code == 404


@pytest.mark.parametrize(
    ("data", "files", "status", "words"),
    [
        ({"purpose": "fine-tune"}, {"file": ("a", b"x")}, 400, "purpose"),
        ({}, {"file": ("a", b"x")}, 400, "purpose"),
        ({"purpose": "batch"}, {"other": ("a", b"x")}, 400, "file"),
        ({"purpose": "batch", "file": "text"}, {"other": ("a", b"x")}, 400, "`file` is no file"),
        ({"purpose": "batch", "expires_after[seconds]": "5", "expires_after[anchor]": "created_at"}, None, 400, "3600"),
        ({"purpose": "batch", "expires_after[seconds]": "x"}, None, 400, "expires_after"),
        ({f"field{number}": "" for number in range(101)}, None, 400, "fields"),
        ({"purpose": "batch"}, {"file": ("a", b"x"), "file2": ("b", b"x")}, 400, "files"),
    ],
)
def test_an_upload_that_is_wrong_is_refused(
    batch_service: RunningService, data: dict[str, str], files: Any, status: int, words: str
) -> None:
    answer = batch_service.http.post("/v1/files", data=data, files=files or {"file": ("a", b"x")})
    assert answer.status_code == status, answer.text
    assert words in answer.json()["error"]["message"]


def test_an_upload_may_be_larger_than_other_bodies_and_goes_to_disk(client: openai.OpenAI, folder: Path) -> None:
    line = json.dumps({"custom_id": "a", "url": CHAT, "body": {"messages": [{"role": "user", "content": "x" * 10**6}]}})
    content = b"".join(line.replace('"a"', f'"{number}"').encode() + b"\n" for number in range(70))
    assert len(content) > 64 << 20
    stored = client.files.create(file=("large.jsonl", content), purpose="batch")
    assert stored.bytes == len(content)
    assert (folder / "batches" / "files" / f"{stored.id}.data").stat().st_size == len(content)
    batch = client.batches.create(input_file_id=stored.id, endpoint=CHAT, completion_window="24h")
    assert batch.request_counts is not None
    assert batch.request_counts.total == 70
    client.batches.cancel(batch.id)
    ended(client, batch.id)
    client.files.delete(stored.id)


def test_what_is_no_form_is_refused(batch_service: RunningService) -> None:
    assert batch_service.http.post("/v1/files", json={"purpose": "batch"}).status_code == 415
    headers = {"content-type": "multipart/form-data"}
    assert batch_service.http.post("/v1/files", content=b"x", headers=headers).status_code == 400
    headers = {"content-type": "multipart/form-data; boundary=a"}
    assert batch_service.http.post("/v1/files", content=b"x", headers=headers).status_code == 400


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"completion_window": "24"}, "completion_window"),
        ({"completion_window": "337h"}, "336h"),
        ({"endpoint": "/v1/moderations"}, "endpoint"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
    ],
)
def test_a_batch_that_is_wrong_is_refused(client: openai.OpenAI, change: dict[str, Any], words: str) -> None:
    with pytest.raises(sdk.openai.BadRequestError, match=words):
        begun(client, lines(1), **change)


def test_an_output_expires_as_asked(client: openai.OpenAI) -> None:
    batch = begun(client, lines(1), output_expires_after={"anchor": "created_at", "seconds": 7200})
    output = client.files.retrieve(str(ended(client, batch.id).output_file_id))
    assert output.expires_at == output.created_at + 7200


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_a_batch_goes_on_by_itself_after_its_service_was_killed(start_service: StartService, tmp_path: Path) -> None:
    """The battery kills a hundred, in processes that no test has forked."""
    n_kills = 2
    n_requests, batch_id, known = 15 * (n_kills + 1), "", set[str]()
    for number in range(n_kills + 1):
        service = start_service(data_dir=str(tmp_path))
        with sdk.openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0) as client:
            batch_id = batch_id or begun(client, lines(n_requests)).id
            path = tmp_path / "batches" / f"{batch_id}.jsonl"
            if number == n_kills:
                batch = ended(client, batch_id)
                answers = content_of(client, batch.output_file_id)
                break
        deadline_s = time.monotonic() + 60
        while not path.exists() or path.read_bytes().count(b"\n") < len(known) + 3:
            assert time.monotonic() < deadline_s, service.http.get(f"/v1/batches/{batch_id}").text
            time.sleep(0.01)
        os.kill(service.process.pid, signal.SIGKILL)
        found = [json.loads(line)["custom_id"] for line in path.read_bytes().splitlines()[:-1]]
        assert len(set(found)) == len(found)
        assert known <= set(found)
        known = set(found)
    assert batch.status == "completed"
    assert sorted(answers) == sorted(f"r{number}" for number in range(n_requests))


@pytest.mark.slow
def test_a_batch_that_a_killed_service_was_writing_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "batches"
    running = partial_files(folder, "batch_1.json")
    BatchStore(folder).all()
    assert list(folder.iterdir()) == [running]
