from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from app.engine.fake import FakeSpeaker
from app.engine.messages import Failed, Finished, Speak, Spoken
from app.engine.request import FinishReason, MediaInput
from app.engine.speech import SpeechQueue, max_frames
from app.protocol.speech import SpeechSampling
from quantizer.system.errors import EngineError


class RecordingQueue:
    """A queue over a speaker, and its events in order."""

    def __init__(self, speaker: FakeSpeaker | None = None) -> None:
        self.speaker = speaker or FakeSpeaker()
        self.events: list[Any] = []
        self.queue = SpeechQueue(self.speaker, self.events.append)

    def say(self, name: str, *sentences: str, **more: Any) -> None:
        self.queue.submit(Speak(request_id=name, sentences=sentences, **more))

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        for _ in range(5000):
            if self.queue.is_idle or until():
                return
            self.queue.step()
        raise AssertionError("the queue does not come to rest")

    def of(self, name: str) -> list[Any]:
        return [event for event in self.events if event.request_id == name]


def test_each_sentence_comes_when_it_is_said_and_the_end_counts_all() -> None:
    recorded = RecordingQueue()
    recorded.say("a", "Hello there.", "How are you?")
    recorded.run(until=lambda: bool(recorded.events))
    (first,) = recorded.events
    assert (first.index, first.sample_rate, first.is_cut) == (0, 24_000, False)
    assert len(first.samples) == 2 * 3 * 1920
    recorded.run()
    assert [type(event) for event in recorded.events] == [Spoken, Spoken, Finished]
    end = recorded.events[-1]
    assert (end.reason, end.usage.n_prompt_tokens, end.usage.n_output_tokens) == (FinishReason.STOP, 24, 6)


def test_samples_are_those_of_the_speaker_in_16_bits_and_clipped() -> None:
    speaker = FakeSpeaker()
    speaker.samples = lambda: np.array([0.0, 1.0, -1.0, 2.0, -3.0, 0.5], np.float32)  # type: ignore[method-assign]
    recorded = RecordingQueue(speaker)
    recorded.say("a", "Hi.")
    recorded.run()
    samples = np.frombuffer(recorded.events[0].samples, "<i2")
    assert samples.tolist() == [0, 32767, -32767, 32767, -32767, 16383]


def test_texts_take_turns_by_the_sentence() -> None:
    recorded = RecordingQueue()
    recorded.say("a", "One.", "Two.", "Three.")
    recorded.say("b", "Four.")
    recorded.run()
    assert [event.request_id for event in recorded.events] == ["a", "b", "b", "a", "a", "a"]


def test_the_voice_and_the_seed_reach_the_speaker() -> None:
    def said(**more: Any) -> bytes:
        recorded = RecordingQueue()
        recorded.say("a", "Hello.", **more)
        recorded.run()
        samples: bytes = recorded.events[0].samples
        return samples

    assert said() == said()
    assert said() != said(sampling=SpeechSampling(seed=1))
    assert said() != said(voice=MediaInput("", "QUJD"))


def test_an_aborted_text_says_nothing_more_and_leaves_the_place_to_the_next() -> None:
    recorded = RecordingQueue()
    recorded.say("a", "One.", "A very long sentence that nobody wants to hear any more.")
    recorded.say("b", "Two.")
    recorded.run(until=lambda: len(recorded.of("a")) == 1)
    recorded.queue.interrupt("a")
    recorded.queue.abort("a")
    recorded.run()
    assert len(recorded.of("a")) == 1
    assert [type(event) for event in recorded.of("b")] == [Spoken, Finished]


def test_a_sentence_that_was_interrupted_for_another_is_said_again_from_its_begin() -> None:
    recorded = RecordingQueue()
    recorded.say("a", "A sentence of some frames.")
    for _ in range(3):
        recorded.queue.step()
    recorded.speaker.interrupt()
    recorded.run()
    spoken, end = recorded.events
    assert len(spoken.samples) == 2 * 7 * 1920
    assert end.reason is FinishReason.STOP


def test_nothing_is_computed_between_an_interruption_and_its_abort() -> None:
    recorded = RecordingQueue()
    recorded.say("a", "Hello.")
    recorded.queue.interrupt("a")
    for _ in range(10):
        recorded.queue.step()
    assert not recorded.events
    recorded.queue.abort("a")
    assert recorded.queue.is_idle
    recorded.say("a", "Hello.")
    recorded.run()
    assert recorded.events, "the name counts no longer as aborted"


def test_a_sentence_without_an_end_is_cut() -> None:
    speaker = FakeSpeaker()
    step = speaker.step

    def never_ends() -> bool:
        speaker._n_left = max(2, speaker._n_left)
        return step()

    speaker.step = never_ends  # type: ignore[method-assign]
    recorded = RecordingQueue(speaker)
    recorded.say("a", "Hi.")
    recorded.run()
    spoken, end = recorded.events
    assert spoken.is_cut
    assert (end.reason, end.usage.n_output_tokens) == (FinishReason.LENGTH, max_frames("Hi.", speaker.facts))


def test_the_longest_time_of_a_sentence_grows_with_it_to_a_limit() -> None:
    facts = FakeSpeaker().facts
    assert max_frames("a", facts) == 67  # 5.4 s
    assert max_frames("a" * 50, facts) == 312
    assert max_frames("a" * 300, facts) == 512


def test_an_error_ends_the_text_and_not_the_next_one() -> None:
    speaker = FakeSpeaker()
    begin = speaker.begin

    def refuses(sentence: str, *rest: Any) -> int:
        if sentence == "No.":
            raise EngineError("It cannot.", "Ask otherwise.")
        return begin(sentence, *rest)

    speaker.begin = refuses  # type: ignore[method-assign]
    recorded = RecordingQueue(speaker)
    recorded.say("a", "No.")
    recorded.say("b", "Yes.")
    recorded.run()
    (failed,) = recorded.of("a")
    assert isinstance(failed, Failed)
    assert failed.error.cause == "It cannot."
    assert [type(event) for event in recorded.of("b")] == [Spoken, Finished]


def test_a_model_that_does_not_speak_says_so() -> None:
    events: list[Any] = []
    queue = SpeechQueue(None, events.append)
    queue.submit(Speak(request_id="a", sentences=("Hello.",)))
    queue.interrupt("a")
    assert queue.is_idle
    (failed,) = events
    assert failed.error.cause == "This model does not speak."


@pytest.mark.parametrize("n_frames", [1, 4])
def test_a_sound_has_as_many_samples_as_its_frames(n_frames: int) -> None:
    recorded = RecordingQueue()
    recorded.say("a", "abcd" * n_frames)
    recorded.run()
    assert len(recorded.events[0].samples) == 2 * 1920 * n_frames
