from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest

from app.engine.fake import FakeBackend
from app.engine.llama import LlamaModel
from app.engine.load.draft_sources import load_draft_model
from app.engine.protocol.messages import EngineConfig, Truncation
from app.engine.speculative.cost_model import StepCost
from app.engine.tuning.tune_results import RuntimeSettings
from offload.placement.load_parameters import ON_HOST
from quantizer.gguf.gguf_reader import ModelFileError
from tests.quantizer.gguf_files import tiny_llama

REAL_DRAFT = Path(__file__).with_name("real_draft.py")
SETTING = RuntimeSettings(1, False, False)
ANYWHERE = Truncation()


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, Any]]:
    guide = Path(__file__).parents[4] / "assets" / "guide" / "guide-Q8_0.gguf"
    run = subprocess.run(
        [sys.executable, str(REAL_DRAFT), str(guide)], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr
    answered: dict[str, dict[str, Any]] = json.loads(run.stdout)
    return answered


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answers_are_those_without_a_draft_model(answers: dict[str, dict[str, Any]], temperature: float) -> None:
    plain, drafted = answers[f"plain at {temperature}"], answers[f"drafted at {temperature}"]
    assert drafted["texts"] == plain["texts"]


def test_drafts_of_the_same_model_are_nearly_always_accepted(answers: dict[str, dict[str, Any]]) -> None:
    drafted = answers["drafted at 0.0"]
    tally = drafted["drafts"]["draft model"]
    assert tally["n_drafted"] > 50
    assert tally["n_accepted"] > 0.9 * tally["n_drafted"]
    assert drafted["n_steps"] < answers["plain at 0.0"]["n_steps"], "which looks up drafts too"


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
