from __future__ import annotations

import asyncio
import errno
import json
import os
import stat
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.batch.requests import BatchRequest, read_requests
from app.batch.run import OutputFile, Tally, run_batch
from app.protocol.errors import ServiceError
from quantizer.system.errors import StorageError, UsageError

REQUESTS = read_requests(
    "f",
    [
        json.dumps({"custom_id": name, "url": "/v1/completions", "body": {"prompt": name}}).encode()
        for name in ("a", "b", "c", "d")
    ],
)


class Server:
    """Answers with `statuses` by the custom id, 200 otherwise, and ends for good after `n_most` answers."""

    def __init__(self, n_most: int = 1000, **statuses: list[int]) -> None:
        self.asked: list[str] = []
        self.n_at_once = self.n_most_at_once = 0
        self._n_most = n_most
        self._statuses = statuses

    async def __call__(self, request: BatchRequest) -> tuple[int, Any]:
        self.asked.append(request.custom_id)
        if len(self.asked) > self._n_most:
            raise ServiceError("It is gone.", "")
        self.n_at_once += 1
        self.n_most_at_once = max(self.n_most_at_once, self.n_at_once)
        await asyncio.sleep(0)
        self.n_at_once -= 1
        statuses = self._statuses.get(request.custom_id, [200])
        status = statuses.pop(0) if len(statuses) > 1 else statuses[0]
        if status >= 400:
            return status, {"error": {"code": "broken", "message": "It broke."}}
        return status, {"id": "1", "usage": {"prompt_tokens": 3, "completion_tokens": 2}}


def answer(path: Path, server: Server, requests: Sequence[BatchRequest] = REQUESTS, **options: bool) -> Tally:
    with OutputFile(path, requests, **options) as output:
        return asyncio.run(run_batch(requests, server, output, 2))


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.batch.run._PAUSE_S", 0.0)


def test_each_request_has_a_line_and_as_many_are_asked_at_once_as_wanted(tmp_path: Path) -> None:
    server = Server()
    assert answer(tmp_path / "out", server) == Tally(4, 0, 12, 8)
    assert server.asked == ["a", "b", "c", "d"]
    assert server.n_most_at_once == 2
    assert {line["custom_id"]: line["error"] for line in lines_of(tmp_path / "out")} == dict.fromkeys("abcd")
    if sys.platform != "win32":
        assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_error_is_a_line_with_its_reason(tmp_path: Path) -> None:
    assert answer(tmp_path / "out", Server(b=[400])).n_failed == 1
    (failed,) = [line for line in lines_of(tmp_path / "out") if line["error"]]
    assert failed["custom_id"] == "b"
    assert failed["error"] == {"code": "broken", "message": "It broke."}
    assert failed["response"]["status_code"] == 400
    assert failed["response"]["body"]["error"]["message"] == "It broke."


@pytest.mark.parametrize(("statuses", "n_asked", "n_failed"), [([500, 503, 200], 3, 0), ([429], 3, 1), ([404], 1, 1)])
def test_what_may_pass_is_asked_again(tmp_path: Path, statuses: list[int], n_asked: int, n_failed: int) -> None:
    server = Server(c=statuses)
    assert answer(tmp_path / "out", server).n_failed == n_failed
    assert server.asked.count("c") == n_asked


def test_a_batch_whose_server_is_gone_stops_and_goes_on_with_what_has_no_answer(tmp_path: Path) -> None:
    with pytest.raises(ServiceError):
        answer(tmp_path / "out", Server(n_most=3))
    done = {line["custom_id"] for line in lines_of(tmp_path / "out")}
    server = Server()
    assert answer(tmp_path / "out", server).n_answered == 4
    assert sorted(server.asked) == sorted({"a", "b", "c", "d"} - done)
    assert sorted(line["custom_id"] for line in lines_of(tmp_path / "out")) == ["a", "b", "c", "d"]


def test_failed_requests_are_asked_again_only_where_that_is_wanted(tmp_path: Path) -> None:
    answer(tmp_path / "out", Server(b=[400], d=[400]))
    server = Server()
    assert answer(tmp_path / "out", server) == Tally(4, 2)
    assert server.asked == []
    assert answer(tmp_path / "out", server, retry_failed=True) == Tally(4, 0, 6, 4)
    assert server.asked == ["b", "d"]
    assert len(lines_of(tmp_path / "out")) == 4


@given(st.data())
def test_a_file_that_was_cut_anywhere_is_completed_without_a_line_twice(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("cut") / "out"
    answer(path, Server())
    whole = path.read_bytes()
    n_kept = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:n_kept])
    server = Server()
    answer(path, server)
    assert len(server.asked) == 4 - whole[:n_kept].count(b"\n")
    assert sorted(line["custom_id"] for line in lines_of(path)) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("content", ["text\n", "{}\n", '{"custom_id": "a", "id": "other", "error": null}\n', "[]\n\n"])
def test_a_file_of_something_else_is_left_as_it_is(tmp_path: Path, content: str) -> None:
    path = tmp_path / "out"
    path.write_text(content)
    with pytest.raises(UsageError, match=r"Line 1 of .* is not an answer to this batch"):
        answer(path, Server())
    assert path.read_text() == content


def test_a_line_that_is_there_twice_is_found(tmp_path: Path) -> None:
    path = tmp_path / "out"
    answer(path, Server())
    path.write_bytes(path.read_bytes() * 2)
    with pytest.raises(UsageError, match="Line 5"):
        answer(path, Server())


def test_two_processes_never_write_one_file(tmp_path: Path) -> None:
    with OutputFile(tmp_path / "out", REQUESTS), pytest.raises(UsageError, match="Another localllm"):
        OutputFile(tmp_path / "out", REQUESTS)


def test_a_patient_process_writes_once_the_other_has_ended(tmp_path: Path) -> None:
    first = OutputFile(tmp_path / "out", REQUESTS)
    threading.Timer(0.2, first.close).start()
    with OutputFile(tmp_path / "out", REQUESTS, patience_s=60):
        assert first._file.closed


def test_a_file_without_a_line_is_not_left(tmp_path: Path) -> None:
    with pytest.raises(ServiceError):
        answer(tmp_path / "out", Server(n_most=0))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no folder"):
        answer(tmp_path / "missing" / "out", Server())


def test_a_disk_that_is_full_in_mid_line_stops_the_batch_which_then_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_left = 500

    def write(descriptor: int, data: memoryview) -> int:
        nonlocal n_left
        if not n_left:
            raise OSError(errno.ENOSPC, "No space left on device")
        n_written = whole_write(descriptor, data[:n_left])
        n_left -= n_written
        return n_written

    whole_write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        with pytest.raises(StorageError, match="No space left"):
            answer(tmp_path / "out", Server())
    assert (tmp_path / "out").stat().st_size == 500
    server = Server()
    assert answer(tmp_path / "out", server).n_answered == 4
    assert 0 < len(server.asked) < 4


def test_an_answer_counts_from_when_it_is_written_though_the_run_is_interrupted_before_it_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_syncing, is_interrupted = asyncio.Event(), asyncio.Event()

    async def sync(*_: object) -> None:
        is_syncing.set()
        await is_interrupted.wait()

    async def interrupted(output: OutputFile) -> None:
        running = asyncio.create_task(run_batch(REQUESTS, Server(), output, 1))
        await is_syncing.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    monkeypatch.setattr("app.batch.run.SYNC_INTERVAL_S", 0.0)
    monkeypatch.setattr("app.batch.run.asyncio.to_thread", sync)
    with OutputFile(tmp_path / "out", REQUESTS) as output:
        asyncio.run(interrupted(output))
        assert len((tmp_path / "out").read_text().splitlines()) == 1
        assert output.tally == Tally(1, 0, 3, 2)
