from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from app.engine.messages import EngineConfig, UnfitPolicy
from app.protocol.errors import UnfitError
from app.service.pool.engine_client import EngineClient
from app.service.server import report_loading
from app.service.starting import OperatorPrompt
from tests.app.thread_worker import thread_worker


@pytest.mark.parametrize("answer", [True, False])
async def test_the_operator_confirms_a_model_that_fits_in_part(answer: bool) -> None:
    questions, notices = list[str](), list[str]()

    def confirm(error: UnfitError) -> bool:
        questions.append(error.cause)
        return answer

    engine = EngineClient(
        Path("tiny.gguf"), EngineConfig(n_ctx=64, when_unfit=UnfitPolicy.ASK), thread_worker(is_unfit=True)
    )
    try:
        with contextlib.nullcontext() if answer else pytest.raises(UnfitError):
            await report_loading(engine, OperatorPrompt(notices.append, confirm))
        assert (engine.status.facts is not None) == answer
    finally:
        await engine.stop()
    assert questions == ["Only 1 of 3 layers fit."]
