from __future__ import annotations

import json
import math
import struct
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from app.engine.fake import FakeBackend
from app.engine.llama import LlamaModel
from app.engine.load import auxiliary_loading
from app.engine.load.auxiliary_loading import check_projector, load_draft_model, usable_projector
from app.engine.messages import EngineConfig, Truncation
from app.engine.speculative.cost_model import StepCost
from app.engine.tuning.tune_results import RuntimeSettings
from offload.placement.load_parameters import ON_HOST
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.gguf.header import read_header
from quantizer.system.errors import EngineError, UserError
from tests.patience import PATIENCE_S
from tests.quantizer.gguf_files import tiny_llama
from tests.quantizer.gguf_projectors import tiny_projector

REAL_DRAFT = Path(__file__).with_name("real_draft.py")
SETTING = RuntimeSettings(1, False, False)
ANYWHERE = Truncation()


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, Any]]:
    guide = Path(__file__).parents[4] / "assets" / "guide" / "guide-Q8_0.gguf"
    run = subprocess.run(
        [sys.executable, str(REAL_DRAFT), str(guide)], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert run.returncode == 0, run.stderr
    answered: dict[str, dict[str, Any]] = json.loads(run.stdout)
    return answered


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answers_are_those_without_a_draft_model(answers: dict[str, dict[str, Any]], temperature: float) -> None:
    plain, drafted = answers[f"plain at {temperature}"], answers[f"drafted at {temperature}"]
    assert drafted["texts"] == plain["texts"]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_of_the_same_model_are_nearly_always_accepted(
    answers: dict[str, dict[str, Any]], temperature: float
) -> None:
    drafted = answers[f"drafted at {temperature}"]
    tally = drafted["drafts"]["draft model"]
    assert tally["n_drafted"] > 20, "what is looked up takes the rest"
    assert tally["n_accepted"] > 0.9 * tally["n_drafted"]
    assert drafted["n_steps"] < answers[f"plain at {temperature}"]["n_steps"], "which looks up drafts too"


def test_a_draft_model_with_another_vocabulary_is_an_error_with_its_name(tmp_path: Path, tiny_model: Path) -> None:
    def with_other_tokens(writer: gguf.GGUFWriter) -> None:
        writer.add_add_bos_token(True)
        writer.add_bos_token_id(258)

    other = tiny_llama(tmp_path / "other.gguf", with_other_tokens)
    with pytest.raises(ModelFileError, match=r"other.gguf cannot draft for this model: it begins texts with token 258"):
        load(tiny_model, other)


def test_a_model_with_more_answers_than_can_be_held_takes_no_draft_model(tiny_model: Path) -> None:
    with pytest.raises(ModelFileError, match="cannot drop rejected draft tokens"):
        load(tiny_model, tiny_model, Truncation(has_states=True))


def load(target: Path, draft: Path, truncation: Truncation = ANYWHERE) -> None:
    config = EngineConfig(n_ctx=64, n_threads=1, n_sequences=1, draft_path=str(draft))
    facts = replace(FakeBackend().facts, truncation=truncation)
    with ExitStack() as owned:
        model = LlamaModel(target, ON_HOST, False, lambda _fraction: True)
        owned.callback(model.close)
        load_draft_model(config, SETTING, model, facts, StepCost(), owned, lambda _path, _config: ON_HOST)


REAL_MEDIA = Path(__file__).with_name("real_media.py")
ROOT = Path(__file__).parents[4]
GUIDE = ROOT / "assets" / "guide" / "guide-Q8_0.gguf"
GUIDE_EMBD = 256


def load_in_child(projector: Path, cache: Path, *forgotten: str) -> dict[str, Any]:
    command = [sys.executable, str(REAL_MEDIA), str(GUIDE), str(projector), str(cache), *forgotten]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def loads(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What three loads with the same pictures found; before the third, their conversation is forgotten."""
    folder = tmp_path_factory.mktemp("media")
    projector = tiny_projector(folder / "mmproj.gguf", GUIDE_EMBD)
    return [load_in_child(projector, folder / "cache", *forgotten) for forgotten in ((), (), ("chat",))]


def test_a_projector_that_was_found_and_does_not_belong_is_left_out_with_the_reason(tmp_path: Path) -> None:
    wrong = tiny_projector(tmp_path / "mmproj.gguf", GUIDE_EMBD // 2)
    config, header = EngineConfig(projector_path=str(wrong)), read_header(GUIDE)
    left, projector, reason = usable_projector(config, header, tmp_path)
    assert (left.projector_path, projector) == ("", None)
    assert reason.startswith("The model takes no pictures or sounds: mmproj.gguf does not belong to guide-Q8_0.gguf")
    with pytest.raises(ModelFileError):
        usable_projector(replace(config, has_chosen_projector=True), header, tmp_path)


@pytest.mark.slow
def test_a_model_with_a_projector_sees(loads: list[dict[str, Any]]) -> None:
    assert (loads[0]["sees"], loads[0]["hears"]) == (True, False)
    assert loads[0]["shapes"] == [[4, GUIDE_EMBD]] * 2
    assert len(set(loads[0]["sums"])) == 2
    assert (loads[0]["n_laid_out"], loads[0]["n_encoded"]) == (2, 2)


@pytest.mark.slow
def test_a_restart_encodes_nothing_again(loads: list[dict[str, Any]]) -> None:
    assert loads[1]["sums"] == loads[0]["sums"]
    assert (loads[1]["n_laid_out"], loads[1]["n_encoded"]) == (0, 0)


@pytest.mark.slow
def test_a_forgotten_conversation_is_encoded_again(loads: list[dict[str, Any]]) -> None:
    assert loads[2]["sums"] == loads[0]["sums"]
    assert (loads[2]["n_laid_out"], loads[2]["n_encoded"]) == (2, 2)


@pytest.mark.slow
def test_a_projector_whose_marks_the_model_lacks_is_refused(tmp_path: Path) -> None:
    found = load_in_child(tiny_projector(tmp_path / "mmproj.gguf", GUIDE_EMBD, "idefics3"), tmp_path / "cache")
    assert found["error"] == "ModelFileError"
    assert "vocabulary lacks" in found["message"]


N_DAMAGED = 12


@pytest.mark.slow
def test_a_projector_is_tested_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_llama(tmp_path / "m.gguf")
    projector = tiny_projector(tmp_path / "mmproj.gguf", 64)
    check_projector(model, projector, tmp_path / "cache")
    monkeypatch.setattr(auxiliary_loading, "run_to_exit", None)
    check_projector(model, projector, tmp_path / "cache")
    assert "true" in (tmp_path / "cache" / "projectors.json").read_text()


@pytest.mark.slow
def test_a_projector_that_ends_its_process_is_refused(tmp_path: Path) -> None:
    def edit(writer: gguf.GGUFWriter) -> None:  # libmtmd asserts the type of a number
        writer.kv_data[0]["clip.vision.patch_size"] = gguf.GGUFValue("14", gguf.GGUFValueType.STRING)

    projector = tiny_projector(tmp_path / "mmproj.gguf", 64, edit=edit)
    with pytest.raises(ModelFileError, match="cannot run the projector mmproj"):
        check_projector(tiny_llama(tmp_path / "m.gguf"), projector, tmp_path / "cache")
    assert not (tmp_path / "cache" / "projectors.json").exists()


@pytest.mark.slow
def test_the_error_of_a_projector_is_raised_here(tmp_path: Path) -> None:
    projector = tiny_projector(tmp_path / "mmproj.gguf", 64, "idefics3")
    with pytest.raises(ModelFileError, match="vocabulary lacks"):
        check_projector(tiny_llama(tmp_path / "m.gguf"), projector, tmp_path / "cache")


@pytest.mark.slow
def test_a_projector_that_computes_what_is_no_number_is_refused(tmp_path: Path) -> None:
    projector = tiny_projector(tmp_path / "mmproj.gguf", 64)
    data = bytearray(projector.read_bytes())
    header = read_header(projector)
    weight = next(tensor for tensor in header.tensors if tensor.name == "mm.input_projection.weight")
    begin = header.data_offset + weight.offset
    data[begin : begin + 4] = struct.pack("<f", math.nan)
    projector.write_bytes(data)
    with pytest.raises(EngineError, match="NaN"):
        check_projector(tiny_llama(tmp_path / "m.gguf"), projector, tmp_path / "cache")


@pytest.mark.slow
def test_damaged_projectors_are_refused_or_run(tmp_path: Path) -> None:
    """The header of each has other bytes somewhere; none may end more than the child."""
    model = tiny_llama(tmp_path / "m.gguf")
    whole = tiny_projector(tmp_path / "whole.gguf", 64).read_bytes()
    n_header = read_header(tmp_path / "whole.gguf").fields["clip.use_gelu"].stop
    random = np.random.default_rng(0)
    found = {}
    for seed in range(N_DAMAGED):
        data = bytearray(whole)
        for place in random.integers(24, n_header, 3):
            data[place] = int(random.integers(256))
        (path := tmp_path / f"{seed}.gguf").write_bytes(data)
        try:
            check_projector(model, path, tmp_path / "cache")
            found[seed] = "runs"
        except UserError as error:
            found[seed] = type(error).__name__
    assert len(found) == N_DAMAGED
    assert set(found.values()) <= {"runs", "ModelFileError", "EngineError"}
