from __future__ import annotations

import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine import frames, wire
from app.engine.counters import Counters, Occupancy
from app.engine.histogram import Histogram
from app.engine.request import FinishReason, Request, SamplingParams, Timings, TokenLogprob, Usage

SAMPLES = [
    frames.Load("/models/é.gguf", frames.EngineConfig(n_ctx=4096)),
    frames.Submit(
        Request(request_id="a", prompt="text\x00\ud800", stop=("x",), sampling=SamplingParams(seed=2**64 - 1))
    ),
    frames.Load("m", frames.EngineConfig(lora=(("/a.gguf", "a"),), control_vectors=(("/b.gguf", -0.5),))),
    frames.Load("m", frames.EngineConfig(rpc=("host:1",), when_unfit=frames.WhenUnfit.ASK)),
    frames.Submit(Request(request_id="a", prompt=(1, 2), max_tokens=0, visible_tags=("<tool_call>",))),
    frames.Submit(Request(request_id="a", prompt="", lora=((0, 0.5), ("name", 1.0)))),
    frames.Submit(
        Request(
            request_id="a",
            prompt="",
            sampling=SamplingParams(logit_bias=((1, -math.inf), (2, 0.5)), dry_sequence_breakers=("é",)),
        )
    ),
    frames.Abort("a"),
    frames.Tokenize("c", "text", True, False),
    frames.Detokenize("c", (1, 2)),
    frames.Observe("c"),
    frames.Embed("c", ("é", (1, 2))),
    frames.Rank("c", "query", ("a", "b")),
    frames.LoadProgress(0.5),
    frames.Ready(1, 2, 3, 4, 5, 6, "llama", 0.1),
    frames.Notice("careful"),
    frames.Planned({"verdict": "fits", "devices": [], "decode_tps": None}),
    frames.Output("a", "text", 1),
    frames.Output("a", "€", 2, (TokenLogprob(b"\xe2\x82", -0.5, ((bytes(range(256)), -9999.0),), 3),)),
    frames.Finished("a", FinishReason.LENGTH, Usage(n_prompt_tokens=1), Timings(queue_s=0.5)),
    frames.Failed("a", "RequestError", "cause", "remedy", {"n_ctx": 1}),
    frames.Tokenized("c", (1,)),
    frames.Tokenized("c", (1, 2), (b"a", b"\xe2\x82")),
    frames.Detokenized("c", "text"),
    frames.Embedded("c", (bytes(range(256)), b""), 7),
    frames.Ranked("c", (0.5, -1e-9), 7),
    frames.Observed("c", Counters(n_steps=1, first_token_s=Histogram(total=0.5)), Occupancy(1, 2, 3, 4)),
]


@pytest.mark.parametrize("frame", SAMPLES, ids=lambda frame: type(frame).__name__)
def test_every_frame_survives_the_pipe(frame: frames.Frame) -> None:
    stream = io.BytesIO(wire.encode(frame) * 2)
    assert wire.read_frame(stream.read) == frame
    assert wire.read_frame(stream.read) == frame
    assert wire.read_frame(stream.read) is None


def test_every_kind_of_frame_is_sampled_above() -> None:
    assert {type(frame) for frame in SAMPLES} == set(frames.Frame.__args__)


def test_a_pipe_cut_inside_a_frame_ends_the_stream() -> None:
    assert wire.read_frame(io.BytesIO(wire.encode(frames.Abort("a"))[:-1]).read) is None


@pytest.mark.parametrize("body", [b"{}", b'{"type":"Nonsense"}', b'{"type":"Abort"}', b'{"type":"Abort","x":1}'])
def test_what_is_no_frame_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="not a frame"):
        wire.decode(body)


def test_a_length_past_the_limit_is_refused_before_anything_is_read() -> None:
    with pytest.raises(ValueError, match="a frame of"):
        wire.read_frame(io.BytesIO(b"\xff\xff\xff\xff").read)


@given(st.text(), st.integers(0, 10**6))
def test_any_text_survives_the_pipe(text: str, n_tokens: int) -> None:
    frame = frames.Output("a", text, n_tokens)
    assert wire.read_frame(io.BytesIO(wire.encode(frame)).read) == frame
