from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.app.cli.in_process import run_localllm
from tests.app.running import RunningService
from tests.app.service_process import start_command
from tests.patience import PATIENCE_S

CHAT = "/v1/chat/completions"


def write_batch(path: Path, n_requests: int, n_tokens: int = 5, **body: Any) -> Path:
    """Write requests of which each third begins in the same way."""
    lines = [
        {
            "custom_id": f"request-{number}",
            "method": "POST",
            "url": CHAT,
            "body": {
                "messages": [{"role": "user", "content": f"Subject {number % 3}: {number}"}],
                "max_tokens": n_tokens,
                "ignore_eos": True,
                **body,
            },
        }
        for number in range(n_requests)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def answers(path: Path) -> dict[str, dict[str, Any]]:
    """Return the lines by custom id, of which none is there twice."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    found = {line["custom_id"]: line for line in lines}
    assert len(found) == len(lines)
    return found


@pytest.fixture
def at_service(service: RunningService, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a command that finds the running service."""
    return {**environment, "LOCALLLM_PORT": service.url.rpartition(":")[2]}


def test_every_line_is_answered_in_the_form_of_openai(tmp_path: Path, at_service: dict[str, str]) -> None:
    path = write_batch(tmp_path / "in.jsonl", 7)
    done = run_localllm(at_service, "batch", path, "-o", tmp_path / "out.jsonl", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["total"], summary["answered"], summary["failed"], summary["output_tokens"]) == (7, 7, 0, 35)
    found = answers(tmp_path / "out.jsonl")
    assert sorted(found) == sorted(f"request-{number}" for number in range(7))
    for line in found.values():
        assert line["error"] is None
        assert line["id"].startswith("batch_req_")
        assert line["response"]["status_code"] == 200
        assert line["response"]["body"]["object"] == "chat.completion"
        assert line["response"]["body"]["usage"]["completion_tokens"] == 5


def test_every_endpoint_is_answered_as_by_itself(
    tmp_path: Path, at_service: dict[str, str], service: RunningService
) -> None:
    bodies = {
        "/v1/completions": {"prompt": "a", "max_tokens": 3},
        "/v1/embeddings": {"input": "a"},
        "/v1/responses": {"input": "a", "max_output_tokens": 16},
        CHAT: {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3},
    }
    lines = [{"custom_id": url, "method": "POST", "url": url, "body": body} for url, body in bodies.items()]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, lines)))
    run_localllm(at_service, "batch", tmp_path / "in.jsonl")
    found = answers(tmp_path / "in-answers.jsonl")
    for url, body in bodies.items():
        alone = service.http.post(url, json=body)
        assert found[url]["response"]["status_code"] == alone.status_code
        assert found[url]["response"]["body"]["object"] == alone.json()["object"]


def test_the_exit_status_is_the_number_of_lines_that_failed(tmp_path: Path, at_service: dict[str, str]) -> None:
    path = write_batch(tmp_path / "in.jsonl", 4)
    wrong = [{"custom_id": f"wrong-{n}", "url": CHAT, "body": {"messages": [], "temperature": "hot"}} for n in range(3)]
    path.write_text(path.read_text() + "".join(json.dumps(line) + "\n" for line in wrong))
    done = run_localllm(at_service, "batch", path)
    assert done.returncode == 3
    assert "7 of 7 requests are answered, 3 of them by an error." in done.stdout
    failed = {name: line for name, line in answers(tmp_path / "in-answers.jsonl").items() if line["error"]}
    assert sorted(failed) == ["wrong-0", "wrong-1", "wrong-2"]
    assert "temperature" in failed["wrong-0"]["error"]["message"]
    again = run_localllm(at_service, "batch", path)
    assert (again.returncode, again.stdout.count("\n")) == (3, 1)


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["in.jsonl", "-m", "nosuch"], 1, "no model 'nosuch'"),
        (["missing.jsonl"], 2, "cannot be read"),
        (["in.jsonl", "-o", "in.jsonl"], 2, "Line 1 of in.jsonl is not an answer to this batch"),
        (["in.jsonl", "-o", "nowhere/out.jsonl"], 2, "There is no folder nowhere"),
    ],
)
def test_what_cannot_be_done_is_said_and_leaves_nothing(
    tmp_path: Path, at_service: dict[str, str], arguments: list[str], status: int, words: str
) -> None:
    before = write_batch(tmp_path / "in.jsonl", 2).read_text()
    done = run_localllm(at_service, "batch", *arguments, cwd=tmp_path)
    assert done.returncode == status
    assert words in done.stderr
    assert (tmp_path / "in.jsonl").read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_an_unknown_model_of_the_file_is_one_error_and_not_one_a_line(
    tmp_path: Path, at_service: dict[str, str]
) -> None:
    done = run_localllm(at_service, "batch", write_batch(tmp_path / "in.jsonl", 3, model="org/nosuch"))
    assert done.returncode == 1
    assert "There is no model 'org/nosuch'" in done.stderr


def test_one_model_answers_every_line(tmp_path: Path, at_service: dict[str, str]) -> None:
    path = write_batch(tmp_path / "in.jsonl", 2, model="org/nosuch")
    assert run_localllm(at_service, "batch", path, "-m", "tiny").returncode == 0
    assert {line["response"]["body"]["model"] for line in answers(tmp_path / "in-answers.jsonl").values()} == {"tiny"}


Start = Callable[..., Any]


@pytest.fixture
def start(at_service: dict[str, str]) -> Iterator[Start]:
    """Start the command in a process of its own."""
    processes = []

    def start(*arguments: object) -> Any:
        processes.append(process := start_command(at_service, "batch", *map(str, arguments)))
        return process

    yield start
    for process in processes:
        with process:
            process.wait(timeout=PATIENCE_S)


def wait_for_lines(path: Path, n_lines: int) -> None:
    deadline_s = time.monotonic() + 120
    while not path.exists() or path.read_bytes().count(b"\n") < n_lines:
        assert time.monotonic() < deadline_s, "the batch does not go on"
        time.sleep(0.002)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
@pytest.mark.parametrize("n_kills", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_nothing_is_lost_or_asked_twice_over_kills(
    tmp_path: Path, start: Start, at_service: dict[str, str], n_kills: int
) -> None:
    chance = random.Random(47)
    n_requests = 20 * (n_kills + 1)
    path, output = write_batch(tmp_path / "in.jsonl", n_requests), tmp_path / "in-answers.jsonl"
    known: dict[str, dict[str, Any]] = {}
    for _ in range(n_kills):
        process = start(path)
        wait_for_lines(output, len(known) + chance.randrange(1, 10))
        time.sleep(chance.uniform(0, 0.02))
        os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=PATIENCE_S)
        whole = output.read_bytes()
        lines = [json.loads(line) for line in whole[: whole.rfind(b"\n") + 1].splitlines()]
        found = {line["custom_id"]: line for line in lines}
        assert len(found) == len(lines)
        assert {name: found[name] for name in known} == known
        known = found
    assert run_localllm(at_service, "batch", path).returncode == 0
    ended = answers(output)
    assert len(ended) == n_requests
    assert {name: ended[name] for name in known} == known
    assert all(line["error"] is None for line in ended.values())


@pytest.mark.skipif(sys.platform == "win32", reason="signals of another kind")
def test_ctrl_c_leaves_what_is_answered_and_says_how_to_go_on(
    tmp_path: Path, at_service: dict[str, str], service: RunningService
) -> None:
    path, output = write_batch(tmp_path / "in.jsonl", 400), tmp_path / "in-answers.jsonl"
    with ThreadPoolExecutor(1) as pool:

        def interrupt() -> None:
            wait_for_lines(output, 3)
            os.kill(os.getpid(), signal.SIGINT)

        interrupting = pool.submit(interrupt)
        done = run_localllm(at_service, "batch", path)
        interrupting.result()
    assert done.returncode == 130
    n_answered = len(answers(output))
    assert f"{n_answered} of 400 requests are answered" in done.stderr
    assert done.stderr.rstrip().endswith(f"localllm batch --output={output} -- {path}")
    service.wait_until(lambda model: model["n_running"] == 0)


@pytest.mark.slow
def test_a_service_that_dies_stops_the_batch_and_the_next_command_goes_on(
    tmp_path: Path, start_service: Callable[..., RunningService], environment: Mapping[str, str]
) -> None:
    path, output = write_batch(tmp_path / "in.jsonl", 100), tmp_path / "in-answers.jsonl"
    own = {"data_dir": str(tmp_path / "data"), "cache_dir": str(tmp_path / "cache")}
    folders = {f"LOCALLLM_{name.upper()}": value for name, value in own.items()}
    service = start_service(**own)
    with ThreadPoolExecutor(1) as pool:

        def kill() -> None:
            wait_for_lines(output, 5)
            os.kill(service.process.pid, signal.SIGKILL)

        killing = pool.submit(kill)
        done = run_localllm({**environment, **folders, "LOCALLLM_PORT": service.url.rpartition(":")[2]}, "batch", path)
        killing.result()
    assert done.returncode == 1
    assert "Go on with:\n  localllm batch" in done.stderr
    assert len(answers(output)) < 100
    later = start_service(**own)
    again = run_localllm({**environment, **folders, "LOCALLLM_PORT": later.url.rpartition(":")[2]}, "batch", path)
    assert again.returncode == 0, again.stderr
    assert len(answers(output)) == 100


@pytest.mark.slow
def test_a_chat_beside_a_batch_takes_the_only_slot_at_once(
    tmp_path: Path,
    start_service: Callable[..., RunningService],
    environment: Mapping[str, str],
) -> None:
    path, output = write_batch(tmp_path / "in.jsonl", 3, n_tokens=1000), tmp_path / "in-answers.jsonl"
    own = {"data_dir": str(tmp_path / "data"), "parallel": "1"}
    service = start_service(**own)
    settings = {"DATA_DIR": own["data_dir"], "PORT": service.url.rpartition(":")[2]}
    outside = {**environment, **{f"LOCALLLM_{name}": value for name, value in settings.items()}}
    body = {"messages": [{"role": "user", "content": "now"}], "max_tokens": 3, "ignore_eos": True}

    def is_first() -> bool:
        """Whether a chat is answered before the answer of the batch that was running."""
        n_before = output.read_bytes().count(b"\n") if output.exists() else 0
        service.wait_until(lambda model: model["n_running"] == 1)
        service.http.post(CHAT, json=body).raise_for_status()
        return not output.exists() or output.read_bytes().count(b"\n") == n_before

    with start_command(outside, "batch", str(path)) as process:
        assert any(is_first() for _ in range(2))  # the answer may have been about to end
        os.kill(process.pid, signal.SIGTERM)
