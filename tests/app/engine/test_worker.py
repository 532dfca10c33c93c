from __future__ import annotations

import subprocess
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from app.engine import messages
from app.engine.loop.core import Event
from app.engine.loop.verification import OUTPUT_INTERVAL_S
from app.engine.media.chunks import is_placeholder
from app.engine.messages import EngineConfig, Failed, Output, WorkerMessage
from app.engine.request import (
    BATCH_PRIORITY,
    READ_AHEAD_PRIORITY,
    FinishReason,
    MediaInput,
    Request,
    SamplingParams,
    TokenLogprob,
)
from app.engine.worker import MAX_OUTPUT_INTERVAL_S, Outbox
from quantizer.system.errors import ErrorInfo
from quantizer.system.process import python_command
from tests.patience import PATIENCE_S

GREEDY = SamplingParams(temperature=0.0)


class Child:
    """A worker process and its pipes, as the service sees them."""

    def __init__(self, *options: str) -> None:
        command = python_command("app.engine.worker", *options)
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def send(self, *wanted: WorkerMessage) -> None:
        assert self.process.stdin
        self.process.stdin.write(b"".join(messages.encode(message) for message in wanted))
        self.process.stdin.flush()

    def receive(self) -> WorkerMessage | None:
        assert self.process.stdout
        return messages.read_message(self.process.stdout.read)

    def until(self, kind: type[WorkerMessage]) -> list[WorkerMessage]:
        seen: list[WorkerMessage] = []
        while (message := self.receive()) is not None:
            seen.append(message)
            if isinstance(message, kind):
                return seen
        raise AssertionError(f"the worker ended before {kind.__name__}; it sent {seen}")


@contextmanager
def worker(*options: str, model: str = "fake", projector: str = "", deterministic: bool = False) -> Iterator[Child]:
    child = Child(*options)
    with child.process:
        try:
            config = EngineConfig(n_ctx=256, projector_path=projector, is_deterministic=deterministic)
            child.send(messages.Load(model, config))
            yield child
        finally:
            child.process.kill()


def request(name: str, n_tokens: int, prompt: str = "hello") -> Request:
    return Request(request_id=name, prompt=prompt, max_tokens=n_tokens, sampling=GREEDY, ignore_eos=True)


def test_a_worker_loads_reports_progress_and_answers() -> None:
    with worker("--fake") as child:
        loading = child.until(messages.Ready)
        assert isinstance(loading[0], messages.LoadProgress)
        child.send(request("a", 12))
        answer = child.until(messages.Finished)
        assert "".join(message.text for message in answer if isinstance(message, messages.Output)).isprintable()
        assert answer[-1].usage.n_output_tokens == 12


def test_a_load_in_mid_way_ends_with_the_pipe() -> None:
    with worker("--fake", "--fake-load-ms", "5000") as child:
        child.until(messages.LoadProgress)
        assert child.process.stdin
        child.process.stdin.close()
        assert child.process.wait(timeout=PATIENCE_S) is not None
        assert child.until(messages.Failed)[-1].error.cause == "Loading was stopped."


def test_an_abort_right_behind_its_request_still_ends_it() -> None:
    with worker("--fake", "--fake-step-ms", "20") as child:
        child.until(messages.Ready)
        child.send(request("a", 200), messages.Abort("a"))
        assert child.until(messages.Finished)[-1].reason is FinishReason.ABORTED


def wait_until_running(child: Child) -> messages.EngineMetrics:
    """Return the metrics, which are sent in mid-batch too, as soon as a request is running."""
    while True:
        child.send(messages.GetMetrics("metrics"))
        metrics = child.until(messages.EngineMetrics)[-1]
        if metrics.occupancy.n_running:
            return metrics
        time.sleep(0.01)


def test_an_abort_in_mid_batch_ends_it_before_the_batch_would() -> None:
    with worker("--fake", "--fake-step-ms", "20000") as child:
        child.until(messages.Ready)
        child.send(request("a", 200))
        wait_until_running(child)
        child.send(messages.Abort("a"))
        finished = child.until(messages.Finished)[-1]
        assert (finished.reason, finished.usage.n_output_tokens) == (FinishReason.ABORTED, 0)


def of_batch(name: str, n_tokens: int) -> Request:
    return replace(request(name, n_tokens, f"batch {name}"), priority=BATCH_PRIORITY, max_draft_tokens=0)


def finished(seen: list[WorkerMessage]) -> list[str]:
    return [message.request_id for message in seen if isinstance(message, messages.Finished)]


@pytest.mark.slow
def test_a_batch_has_more_answers_at_once_than_there_are_slots() -> None:
    with worker("--fake", "--fake-step-ms", "1") as child:
        facts = child.until(messages.Ready)[-1].facts
        n_answers = 20
        assert facts.n_sequences < n_answers <= facts.n_batch_answers
        child.send(*(of_batch(str(number), 100) for number in range(n_answers)))
        child.until(messages.Finished)
        child.send(messages.GetMetrics("metrics"))
        metrics = child.until(messages.EngineMetrics)[-1]
    assert metrics.counters.n_slot_steps > 10 * metrics.counters.n_steps


def test_a_request_begins_before_a_step_of_a_batch_would_have_ended() -> None:
    with worker("--fake", "--fake-step-ms", "600000") as child:  # the worker ends with this test
        child.until(messages.Ready)
        child.send(of_batch("batch", 1))
        wait_until_running(child)
        child.send(request("chat", 1))
        seen: list[WorkerMessage] = []
        while not seen or "chat" not in {answer.request_id for answer in seen[-1].running}:
            time.sleep(0.01)
            child.send(messages.GetMetrics("metrics"))
            seen += child.until(messages.EngineMetrics)
        assert finished(seen) == []


@pytest.mark.slow
def test_a_batch_pauses_for_a_request_and_goes_on_as_if_alone() -> None:
    with worker("--fake", "--fake-step-ms", "10") as child:
        child.until(messages.Ready)
        child.send(of_batch("alone", 200))
        alone = child.until(messages.Finished)
        child.send(*(replace(of_batch("alone", 200), request_id=name) for name in "ab"))
        wait_until_running(child)
        child.send(request("chat", 10))
        seen = child.until(messages.Finished)
        assert finished(seen) == ["chat"]
        while not {"a", "b"} <= set(finished(seen)):
            seen += child.until(messages.Finished)

    def text(name: str, events: list[WorkerMessage]) -> str:
        return "".join(event.text for event in events if isinstance(event, Output) and event.request_id == name)

    assert text("a", seen) == text("b", seen) == text("alone", alone)


def test_a_deterministic_answer_shares_the_time_of_others_and_no_step() -> None:
    with worker("--fake", "--fake-step-ms", "10") as child:
        child.until(messages.Ready)
        child.send(request("long", 100), replace(request("exact", 20), is_deterministic=True))
        seen = child.until(messages.Finished)
        assert finished(seen) == ["exact"]
        assert any(isinstance(event, Output) and event.request_id == "long" for event in seen)
        assert finished(child.until(messages.Finished)) == ["long"]


def test_requests_are_deterministic_where_the_settings_say_so_unless_they_say_no() -> None:
    with worker("--fake", "--fake-step-ms", "10", deterministic=True) as child:
        child.until(messages.Ready)
        usual = replace(request("usual", 30), is_deterministic=False)
        child.send(request("first", 20), request("second", 20), usual)
        ends = [finished(child.until(messages.Finished))[-1] for _ in range(3)]
        assert [name for name in ends if name != "usual"] == ["first", "second"], "one after the other"
        assert ends[-1] == "second"
        reading = Request(request_id="ahead", prompt="hello", max_tokens=0, priority=READ_AHEAD_PRIORITY)
        child.send(reading)
        (end,) = (event for event in child.until(messages.Finished) if isinstance(event, messages.Finished))
        assert end.reason is FinishReason.ABORTED, "it would read into cells that no answer uses"


def test_a_deterministic_answer_about_a_picture_waits_for_it() -> None:
    with worker("--fake", projector="any") as child:
        child.until(messages.Ready)
        child.send(replace(about_picture("seen"), is_deterministic=True), about_picture("usual"))
        seen = child.until(messages.Finished)
        seen += child.until(messages.Finished)
        assert sorted(finished(seen)) == ["seen", "usual"]


def test_a_deterministic_answer_can_be_aborted_and_counts_in_the_metrics() -> None:
    with worker("--fake", "--fake-step-ms", "10") as child:
        child.until(messages.Ready)
        child.send(replace(request("exact", 200), is_deterministic=True))
        metrics = wait_until_running(child)
        assert [progress.request_id for progress in metrics.running] == ["exact"]
        child.send(messages.Abort("exact"))
        assert child.until(messages.Finished)[-1].reason is FinishReason.ABORTED


def test_metrics_are_sent_in_mid_batch() -> None:
    with worker("--fake", "--fake-step-ms", "20000") as child:
        child.until(messages.Ready)
        child.send(request("a", 200))
        metrics = wait_until_running(child)
    assert (metrics.call_id, metrics.occupancy.n_running, metrics.counters.n_steps) == ("metrics", 1, 0)


def test_tokenize_and_detokenize_are_inverse() -> None:
    with worker("--fake") as child:
        child.until(messages.Ready)
        child.send(messages.Tokenize("t", "hé", True, True))
        tokens = child.until(messages.Tokenized)[-1].tokens
        child.send(messages.Detokenize("d", tokens), messages.Detokenize("e", (9999,)))
        assert child.until(messages.Detokenized)[-1].text == "hé"
        assert child.until(messages.Failed)[-1].request_id == "e"


def test_the_worker_ends_when_its_service_is_gone() -> None:
    with worker("--fake", "--fake-step-ms", "10") as child:
        child.until(messages.Ready)
        child.send(request("a", 200))
        assert child.process.stdin
        child.process.stdin.close()
        assert child.process.wait(timeout=PATIENCE_S) == 0


@pytest.mark.slow
def test_a_file_that_is_no_model_fails_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCALLLM_CACHE_DIR", str(tmp_path))
    path = tmp_path / "not.gguf"
    path.write_text("no model")
    with worker(model=str(path)) as child:
        failed = child.until(messages.Failed)[-1]
    assert failed.error.kind == "ModelFileError"
    assert "not.gguf" in failed.error.cause


def picture(content: str = "cat") -> MediaInput:
    return MediaInput("<1>", b64encode(content.encode()).decode())


def about_picture(name: str, content: str = "cat", n_tokens: int = 8) -> Request:
    return replace(request(name, n_tokens, "what is <1> here"), media=(picture(content),))


def test_a_worker_answers_about_a_picture_and_counts_its_tokens() -> None:
    with worker("--fake", projector="any.gguf") as child:
        facts = child.until(messages.Ready)[-1].facts
        assert facts.sees
        assert facts.hears
        child.send(messages.Tokenize("count", "what is <1> here", True, True, True, (picture(),)))
        counted = child.until(messages.Tokenized)[-1]
        child.send(about_picture("a"))
        finished = child.until(messages.Finished)[-1]
    assert finished.usage.n_prompt_tokens == len(counted.tokens) == len("what is  here") + 6
    assert sum(map(is_placeholder, counted.tokens)) == 4 == counted.pieces.count(b"")


def test_pictures_are_refused_without_a_projector_and_damaged_ones_with_one() -> None:
    with worker("--fake") as child:
        child.send(about_picture("a"))
        assert "takes no pictures" in child.until(messages.Failed)[-1].error.cause
    with worker("--fake", projector="any.gguf") as child:
        child.send(about_picture("b", "damaged"), about_picture("c"))
        seen = child.until(messages.Finished)
    (failed,) = [message for message in seen if isinstance(message, messages.Failed)]
    assert (failed.request_id, seen[-1].request_id) == ("b", "c")
    assert "damaged" in failed.error.cause


def test_an_aborted_request_with_a_picture_ends_once() -> None:
    with worker("--fake", projector="any.gguf") as child:
        child.send(about_picture("a", n_tokens=200), messages.Abort("a"), about_picture("b"))
        seen = child.until(messages.Finished)
        seen += [] if seen[-1].request_id == "b" else child.until(messages.Finished)
    ended = [message for message in seen if isinstance(message, messages.Finished)]
    assert {message.request_id: message.reason for message in ended} == {
        "a": FinishReason.ABORTED,
        "b": FinishReason.LENGTH,
    }


LOGPROB = TokenLogprob(b"x", -1.0, (), 0, 120)


class Sent:
    """An outbox with a clock that is set by hand, and what it has sent."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.groups: list[tuple[Event, ...]] = []
        self.outbox = Outbox(lambda *events: self.groups.append(events), clock=lambda: self.now_s)

    def step(self, step_s: float, *events: Event) -> None:
        self.now_s += step_s
        for event in events:
            self.outbox.add(event)
        self.outbox.flush_if_due()


def failed(request_id: str) -> Failed:
    return Failed(request_id, ErrorInfo("cause", "remedy"))


def test_outputs_of_short_steps_are_sent_as_one() -> None:
    sent = Sent()
    for n_tokens, text in enumerate("abcd", start=1):
        sent.step(OUTPUT_INTERVAL_S / 2, Output("r", text, n_tokens, (LOGPROB,), (ord(text),)))
    assert sent.groups == [
        (Output("r", "ab", 2, (LOGPROB, LOGPROB), (97, 98)),),
        (Output("r", "cd", 4, (LOGPROB, LOGPROB), (99, 100)),),
    ]


def test_the_output_of_a_long_step_is_sent_at_once() -> None:
    sent = Sent()
    sent.step(OUTPUT_INTERVAL_S, Output("r", "a", 1))
    assert sent.groups == [(Output("r", "a", 1),)]


def test_an_end_is_sent_at_once_and_follows_its_text() -> None:
    sent = Sent()
    sent.step(0.0, Output("r", "a", 1), Output("s", "x", 1))
    assert not sent.groups
    sent.step(0.0, Output("r", "b", 2), failed("r"))
    assert sent.groups == [(Output("r", "ab", 2), Output("s", "x", 1), failed("r"))]


def test_text_of_a_batch_waits_for_the_end_of_its_answer_or_a_second() -> None:
    sent = Sent()
    for event in (Output("r", "a", 1), Output("s", "x", 1), failed("r")):
        sent.outbox.add(event)
    sent.outbox.flush_ended(1.0)
    assert sent.groups == [(Output("r", "a", 1), failed("r"))]
    sent.outbox.flush_ended(1.0)
    sent.now_s = 1.0
    sent.outbox.flush_ended(1.0)
    assert sent.groups[1:] == [(Output("s", "x", 1),)]


@pytest.mark.parametrize(("n_answers", "interval_s"), [(2, 2 * OUTPUT_INTERVAL_S), (50, MAX_OUTPUT_INTERVAL_S)])
def test_several_answers_wait_longer_but_not_visibly(n_answers: int, interval_s: float) -> None:
    sent = Sent()
    outputs = [Output(str(number), "a", 1) for number in range(n_answers)]
    sent.step(interval_s * 0.9, *outputs)
    assert not sent.groups
    sent.step(interval_s * 0.1 + 1e-9, *outputs)
    assert [len(group) for group in sent.groups] == [n_answers]


def test_without_events_nothing_is_sent() -> None:
    sent = Sent()
    sent.step(1.0)
    sent.outbox.flush()
    assert not sent.groups
