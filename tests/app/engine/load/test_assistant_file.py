from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from app.engine.load.auxiliary_models import read_auxiliary_models
from app.engine.load.head_file import is_head, read_head
from app.engine.speculative.draft_heads import HeadKind, HeadSpec
from offload.footprint.model import PlannedModel, RunConfig
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.gguf.validation import tensors_of, validate_gguf
from tests.quantizer.gguf_assistants import assistant, assistant_weights, assisted_model
from tests.quantizer.gguf_draft_heads import drafted_model

Edit = Callable[[gguf.GGUFWriter], None]
KEY = "gemma4-assistant."


def test_an_assistant_reads_the_output_of_its_model(tmp_path: Path) -> None:
    head = validate_gguf(assistant(tmp_path / "assistant.gguf"))
    assert is_head(head)
    model = validate_gguf(assisted_model(tmp_path / "m.gguf"))
    assert read_head(head, model) == HeadSpec(HeadKind.ASSISTANT, (3,))


# llama.cpp would read beyond the model's cache, or end the process.
@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda w: w.add_uint32(f"{KEY}embedding_length_out", 96), "needs hidden states of 96 numbers"),
        (lambda w: w.add_nextn_predict_layers(1), "do not predict"),
        (lambda w: w.add_uint32(f"{KEY}attention.key_length", 64), "layer 1 reads 1 key-value heads of 64 numbers"),
        (lambda w: w.add_uint32(f"{KEY}attention.key_length_swa", 32), "layer 0 reads 2 key-value heads of 32"),
        (lambda w: w.add_head_count_kv([4, 1]), "layer 0 reads 4 key-value heads of 16 numbers"),
        (lambda w: w.add_sliding_window_pattern([False, False]), "layer 0 reads 2 key-value heads of 32"),
        (lambda w: w.add_sliding_window(64), "window has 64 tokens"),
    ],
)
def test_one_whose_layers_do_not_fit_the_cache_is_refused(tmp_path: Path, edit: Edit, words: str) -> None:
    head = validate_gguf(assistant(tmp_path / "assistant.gguf", edit))
    model = validate_gguf(assisted_model(tmp_path / "m.gguf"))
    with pytest.raises(ModelFileError, match=words):
        read_head(head, model)


def test_it_drafts_for_no_other_architecture(tmp_path: Path) -> None:
    head = validate_gguf(assistant(tmp_path / "assistant.gguf"))
    with pytest.raises(ModelFileError, match="Gemma 4 models only"):
        read_head(head, validate_gguf(drafted_model(tmp_path / "m.gguf")))


def test_a_model_whose_last_layers_have_no_such_caches_has_no_assistant(tmp_path: Path) -> None:
    head = validate_gguf(assistant(tmp_path / "assistant.gguf"))
    model = assisted_model(tmp_path / "m.gguf", lambda w: w.add_sliding_window_pattern([True, False, False]))
    with pytest.raises(ModelFileError, match="last two layers"):
        read_head(head, validate_gguf(model))


def test_its_weights_are_planned_and_no_cache(tmp_path: Path) -> None:
    head, path = assistant(tmp_path / "assistant.gguf"), assisted_model(tmp_path / "m.gguf")
    header = validate_gguf(path)
    auxiliary = read_auxiliary_models(header, draft_path=str(head))
    profile = PlannedModel(header, tensors_of(header), auxiliary=auxiliary).profile(RunConfig(n_ctx=128))
    (usage,) = profile.extras
    weights = assistant_weights()
    own = sum(array.nbytes for array in weights.values())
    assert own <= usage.weight_bytes + usage.host_bytes <= own + weights["token_embd.weight"].nbytes + (8 << 20)
    assert usage.cache_bytes == 0
