from __future__ import annotations

import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine import messages
from app.engine.loop.counters import Counters, Histogram
from app.engine.messages import Truncation
from app.engine.request import (
    Adapter,
    FinishReason,
    MediaInput,
    ReasoningBudget,
    Request,
    SamplingParams,
    Timings,
    TokenLogprob,
    Usage,
)
from app.protocol.codec import decode as decode_value
from app.protocol.codec import encode as encode_value
from app.protocol.plan import Plan
from app.protocol.status import LoadedSetting, Occupancy
from quantizer.system.errors import ErrorInfo
from tests.app.client.scripted_client import PLAN

RUNNING = messages.AnswerProgress(
    request_id="a",
    arrival=1,
    n_prompt_tokens=2,
    n_cached_tokens=3,
    n_computed_tokens=4,
    n_output_tokens=5,
    has_new_line=True,
    prompt_s=0.5,
    prompt_left_s=1.5,
)
REASONING = ReasoningBudget(opening="<a>", closings=("</a>", "<b>"), ending="</a>", is_open=True, max_tokens=3)
SAMPLES = [
    messages.Load("/models/é.gguf", messages.EngineConfig(n_ctx=4096)),
    Request(request_id="a", prompt="text\x00\ud800", stop=("x",), sampling=SamplingParams(seed=2**64 - 1)),
    messages.Load("m", messages.EngineConfig(lora=(("/a.gguf", "a"),), control_vectors=(("/b.gguf", -0.5),))),
    messages.Load("m", messages.EngineConfig(rpc=("host:1",), when_unfit=messages.UnfitPolicy.ASK)),
    Request(request_id="a", prompt=(1, 2), max_tokens=0, visible_tags=("<tool_call>",)),
    Request(request_id="a", prompt="", lora=((0, 0.5), ("name", 1.0))),
    Request(request_id="a", prompt="", reasoning=REASONING),
    Request(
        request_id="a",
        prompt="",
        sampling=SamplingParams(logit_bias=((1, -math.inf), (2, 0.5)), dry_sequence_breakers=("é",)),
    ),
    messages.Speak(request_id="a", sentences=("é.", "b"), voice=MediaInput("", "QQ==")),
    messages.Spoken("a", 1, b"\0\xff", 24_000, is_cut=True),
    messages.Abort("a"),
    messages.EndThought("a"),
    messages.Tokenize("c", "text", True, False),
    messages.Detokenize("c", (1, 2)),
    messages.GetMetrics("c"),
    messages.ForgetConversations("c", ("a", "b")),
    messages.Forgotten("c"),
    messages.Embed("c", ("é", (1, 2))),
    messages.Rerank("c", "query", ("a", "b")),
    messages.LoadProgress(0.5),
    messages.Ready(
        messages.BackendFacts("llama", 1, 2, 3, 4, 5, 6, Truncation(), 7, 8, 9, adapters=(Adapter("style", "k"),)),
        (LoadedSetting("attention", "plain", "measured", "180 + 34 tok/s"),),
    ),
    messages.Notice("careful"),
    messages.Planned(decode_value(Plan, encode_value(PLAN))),
    messages.Output("a", "text", 1),
    messages.Output("a", "€", 2, (TokenLogprob(b"\xe2\x82", -0.5, ((7, bytes(range(256)), -9999.0),), 3, 5),), (5, 6)),
    messages.Finished("a", FinishReason.LENGTH, Usage(n_prompt_tokens=1), Timings(queue_s=0.5)),
    messages.Failed("a", ErrorInfo("RequestError", "cause", "remedy", {"n_ctx": 1})),
    messages.Tokenized("c", (1,)),
    messages.Tokenized("c", (1, 2), (b"a", b"\xe2\x82")),
    messages.Detokenized("c", "text"),
    messages.Embedded("c", (bytes(range(256)), b""), 7),
    messages.Reranked("c", (0.5, -1e-9), 7),
    messages.EngineMetrics("c", Counters(n_steps=1, first_token_s=Histogram(total=0.5)), Occupancy(1, 2, 3, 4)),
    messages.EngineMetrics("c", Counters(), Occupancy(1, 2, 3, 4), (RUNNING,)),
]


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_every_message_survives_the_pipe(message: messages.WorkerMessage) -> None:
    stream = io.BytesIO(messages.encode(message) * 2)
    assert messages.read_message(stream.read) == message
    assert messages.read_message(stream.read) == message
    assert messages.read_message(stream.read) is None


def test_every_kind_of_frame_is_sampled_above() -> None:
    assert {type(message) for message in SAMPLES} == set(messages.WorkerMessage.__args__)


def test_a_pipe_that_ends_inside_a_message_ends_the_stream() -> None:
    assert messages.read_message(io.BytesIO(messages.encode(messages.Abort("a"))[:-1]).read) is None


@pytest.mark.parametrize("body", [b"{}", b'{"type":"Nonsense"}', b'{"type":"Abort"}', b'{"type":"Abort","x":1}'])
def test_what_is_no_frame_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="not a message"):
        messages.decode(body)


def test_a_length_past_the_limit_is_refused_before_anything_is_read() -> None:
    with pytest.raises(ValueError, match="a message of"):
        messages.read_message(io.BytesIO(b"\xff\xff\xff\xff").read)


@given(st.text(), st.integers(0, 10**6))
def test_any_text_survives_the_pipe(text: str, n_tokens: int) -> None:
    message = messages.Output("a", text, n_tokens)
    assert messages.read_message(io.BytesIO(messages.encode(message)).read) == message
