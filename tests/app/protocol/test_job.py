from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.library.hub.access import HubError
from app.protocol.codec import decode, encode
from app.protocol.job import ENDED, Job
from quantizer.system.errors import EngineError, ErrorInfo, StorageError

texts = st.text(max_size=20)
numbers = st.none() | st.integers(0, 1 << 40)
jobs = st.builds(
    Job,
    id=texts,
    kind=st.sampled_from(["pull", "quantize", "tune", "eval", "bench", "batch"]),
    title=texts,
    arguments=st.dictionaries(texts, texts | st.booleans(), max_size=3),
    created_s=st.floats(0, 1e10),
    state=st.sampled_from(["queued", "running", *sorted(ENDED)]),
    n_bytes=numbers,
    fraction=st.none() | st.floats(0, 1),
    message=texts,
    error=st.none() | st.builds(ErrorInfo, st.just("StorageError"), texts, texts),
    result=st.none() | st.dictionaries(texts, texts, max_size=3),
)


@pytest.mark.slow
@given(jobs)
def test_json_brings_a_job_back_whole(job: Job) -> None:
    assert decode(Job, json.loads(json.dumps(encode(job)))) == job


def test_what_a_later_version_adds_is_ignored() -> None:
    job = Job(id="1", kind="tune", title="tune guide", arguments={}, created_s=1.0)
    assert decode(Job, {**encode(job), "colour": "red"}) == job


def test_what_is_no_job_is_refused() -> None:
    with pytest.raises((KeyError, TypeError)):
        decode(Job, {"id": "1"})


def test_a_failure_becomes_its_error_again() -> None:
    failure = ErrorInfo.of(StorageError("The disk is full.", "Free 2 GB."))
    assert isinstance(failure.error(), StorageError)
    assert str(failure.error()) == "The disk is full. Free 2 GB."
    assert ErrorInfo.of(HubError("There is no such model.")).kind == "UserError", "the nearest that every side knows"
    assert isinstance(ErrorInfo("NoSuchKind", "It failed.", "").error(), EngineError)
