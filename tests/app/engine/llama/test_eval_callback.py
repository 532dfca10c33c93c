from __future__ import annotations

import errno
import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.engine.backend import Chunk
from app.engine.llama import ExpertReadAhead, LlamaModel
from app.engine.load import planner
from app.engine.load.loading import LoadListener, load_model
from app.engine.messages import EngineConfig, UnfitPolicy
from app.engine.tuning.tune_results import RuntimeSettings
from offload.placement.load_parameters import ON_HOST
from quantizer.gguf.header import read_header
from tests.quantizer.gguf_heads import N_EXPERTS, predicting_model

SETTING = RuntimeSettings(n_threads=1, flash_attention=False, extra_buffers=False)
CONFIG = EngineConfig(n_ctx=64, n_sequences=1)
N_USED, N_PARTS = 2, 3  # experts of a token; gate, up and down
Asked = list[tuple[int, int, int]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What the system is asked to read: offset, bytes, advice."""
    found: Asked = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _file, *what: found.append(what))
    return found


def logits(model: LlamaModel, tokens: list[int]) -> np.ndarray:
    with closing(model.context(CONFIG, SETTING, with_mtp=False)) as backend:
        backend.decode([Chunk(0, 0, tokens, len(tokens))])
        return backend.logits(len(tokens) - 1).copy()


def test_experts_are_read_ahead_as_soon_as_a_layer_has_chosen_them(tmp_path: Path, asked: Asked) -> None:
    path = predicting_model(tmp_path / "m.gguf", "glm4moe")
    with closing(LlamaModel(path, ON_HOST, False, lambda _: True)) as model:
        expected = logits(model, [5])
    assert not asked
    observer = ExpertReadAhead([path])
    loaded = LlamaModel(path, ON_HOST, False, lambda _: True, observer=observer)
    with closing(observer), closing(loaded) as model:
        assert np.array_equal(logits(model, [5]), expected)
        one, asked[:] = list(asked), []
        logits(model, [5, 6, 7, 8])
        observer.check()
    header = read_header(path)
    starts = {
        header.data_offset + tensor.offset + expert * tensor.n_bytes // N_EXPERTS: tensor.n_bytes // N_EXPERTS
        for tensor in header.tensors
        if tensor.name.startswith("blk.0.") and "_exps." in tensor.name
        for expert in range(N_EXPERTS)
    }
    assert len(one) == N_USED * N_PARTS
    assert all(starts[offset] == n_bytes and advice == os.POSIX_FADV_WILLNEED for offset, n_bytes, advice in one)
    assert len(one) < len(asked) == len(set(asked)) <= len(starts)


def test_a_file_system_that_takes_no_advice_changes_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = predicting_model(tmp_path / "m.gguf", "glm4moe")
    calls: list[int] = []

    def refused(descriptor: int, *_what: int) -> None:
        calls.append(descriptor)
        raise OSError(errno.EINVAL, "no advice")

    monkeypatch.setattr(os, "posix_fadvise", refused)
    observer = ExpertReadAhead([path])
    loaded = LlamaModel(path, ON_HOST, False, lambda _: True, observer=observer)
    with closing(observer), closing(loaded) as model:
        assert np.isfinite(logits(model, [5])).all()
        observer.check()
    assert len(calls) == 1


@pytest.mark.slow
@pytest.mark.parametrize("is_larger", [True, False])
def test_a_model_larger_than_memory_stays_in_its_file_and_reads_experts_ahead(
    tmp_path: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch, is_larger: bool
) -> None:
    path = predicting_model(tmp_path / "m.gguf", "glm4moe")
    here = planner.detect_machine([], tmp_path)
    if is_larger:
        here = replace(here, host=replace(here.host, free_bytes=1 << 16))
    monkeypatch.setattr(planner, "detect_machine", lambda *_: here)
    config = replace(CONFIG, when_unfit=UnfitPolicy.LOAD, uses_gpu=False, finds_head=False)
    loaded = load_model(path, config, tmp_path / "cache", LoadListener(lambda _: True, lambda _: None, lambda _: None))
    with loaded.owned:
        loaded.backend.decode([Chunk(0, 0, [5], 1)])
        settings = {each.name: each.value for each in loaded.settings}
    assert bool(asked) is is_larger
    assert not (is_larger and "repacked" in settings["weights"])
