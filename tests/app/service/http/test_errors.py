from __future__ import annotations

import pytest

from app.client.connection import error_of
from app.library.hub.access import HubError, NotOnHubError
from app.library.local.placement import NameTakenError
from app.library.local.resolve import UnknownModelError
from app.protocol.errors import ContextOverflowError, RequestError, ServiceError
from app.service.http.errors import RefusedError, code_of, llamacpp_error, openai_error, status_of
from quantizer.checkpoint.config import CheckpointError
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.system.errors import EngineError, UsageError, UserError


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (UnknownModelError("a", "b"), 404, "model_not_found"),
        (ContextOverflowError(9, 4), 400, "context_length_exceeded"),
        (RequestError("a"), 400, "invalid_request"),
        (ModelFileError("a"), 400, "invalid_model"),
        (CheckpointError("a"), 400, "invalid_checkpoint"),
        (UsageError("a"), 400, "invalid_request"),
        (NameTakenError("a"), 409, "model_exists"),
        (NotOnHubError("a"), 404, "not_on_hub"),
        (HubError("a"), 502, "hub_error"),
        (EngineError("a"), 500, "engine_error"),
        (ServiceError("a"), 500, "service_error"),
        (UserError("a"), 500, "server_error"),
        (RefusedError(413, "body_too_large", "a"), 413, "body_too_large"),
    ],
)
def test_each_error_has_its_status_and_code(error: UserError, status: int, code: str) -> None:
    assert (status_of(error), code_of(error)) == (status, code)


@pytest.mark.parametrize("error", [ContextOverflowError(900, 512), RequestError("Why.", "How."), EngineError("Why.")])
def test_the_client_restores_the_same_error(error: UserError) -> None:
    for body in (openai_error(error), llamacpp_error(error)):
        again = error_of(body["error"])
        assert (type(again), str(again)) == (type(error), str(error))


def test_an_error_of_our_own_reaches_the_client_as_its_nearest_public_kind() -> None:
    assert type(error_of(openai_error(UnknownModelError("Why."))["error"])) is ModelFileError


def test_local_folders_are_hidden_from_other_dialects() -> None:
    text = "There is no file /home/me/my models/a.gguf."
    assert openai_error(ModelFileError(text))["error"]["cause"] == "There is no file a.gguf."
    assert openai_error(ModelFileError(text), hide_paths=False)["error"]["cause"] == text
