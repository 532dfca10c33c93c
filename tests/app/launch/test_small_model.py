"""Which model does an agent's small tasks: the candidates of a library, and what the service answers about them."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest

from app.client.service_client import ServiceClient
from app.launch.agents import SmallTasks, TargetModel
from app.launch.small_model import choose_small_model, load_small_model, small_candidates
from app.protocol.library import LocalModel, LocalModels, ModelFit
from app.protocol.status import ContextLength, Evictions
from quantizer.system.errors import EngineError

GIB = 1 << 30
TITLES = SmallTasks("titles", 16_384)
PAGES = SmallTasks("pages", needs_tools=True)


def _model(name: str, n_bytes: int, tps: float | None = None, **facts: object) -> LocalModel:
    fit = ModelFit("fits", tps, n_bytes) if tps else None
    known = {"n_ctx_train": 131_072, "has_chat_template": True, "has_tools": True, **facts}
    return LocalModel(id=name, where="library", path=f"/{name}.gguf", n_bytes=n_bytes, fit=fit, **known)  # type: ignore[arg-type]


MAIN = _model("coder", 16 * GIB, 20.0)


class FakeService:
    """A service with `models`, of which loading one unloads what `evicted` says; None: it does not run."""

    def __init__(self, *models: LocalModel, evicted: dict[str, tuple[str, ...] | None] | None = None) -> None:
        self._lists = [LocalModels((MAIN, *models), is_complete=complete) for complete in (False, True)]
        self._evicted = evicted or {}
        self.asked: list[tuple[str, int]] = []
        self.n_ctx, self.n_lists = 1 << 20, 0
        self.error: EngineError | None = None
        self.library = self  # which the client has apart

    async def models(self) -> LocalModels:
        self.n_lists += 1
        return self._lists.pop(0) if len(self._lists) > 1 else self._lists[0]

    async def evictions(self, model: str, n_ctx: int) -> Evictions:
        self.asked.append((model, n_ctx))
        evicted = self._evicted.get(model, ())
        return Evictions(evicted is not None, evicted or ())

    async def lengthen_context(self, model: str, n_ctx: int) -> ContextLength:
        if self.error:
            raise self.error
        return ContextLength(min(n_ctx, self.n_ctx), 0)

    @property
    def client(self) -> ServiceClient:
        return cast("ServiceClient", self)


def test_the_largest_of_those_that_are_smaller_and_faster_is_tried_first() -> None:
    models = [_model("half", 9 * GIB), _model("small", 2 * GIB), _model("middle", 4 * GIB), _model("tiny", GIB // 4)]
    assert [model.id for model in small_candidates(models, MAIN, TITLES, 16_384)] == ["middle", "small"]


@pytest.mark.parametrize(
    "model",
    [
        _model("slow", 4 * GIB, 22.0),
        _model("guide", 4 * GIB),
        _model("bare", 4 * GIB, has_chat_template=False),
        _model("short", 4 * GIB, n_ctx_train=8192),
        _model("damaged", 4 * GIB, damaged="its header ends early"),
        _model("changed", 4 * GIB, mismatch="another hash"),
        _model("arriving", 4 * GIB, is_arriving=True),
    ],
    ids=lambda model: model.id,
)
def test_a_model_that_would_not_do_is_no_candidate(model: LocalModel) -> None:
    assert small_candidates([model], MAIN, TITLES, 16_384) == ()


def test_tools_are_needed_where_the_small_tasks_have_some() -> None:
    plain = _model("plain", 4 * GIB, has_tools=False)
    assert small_candidates([plain], MAIN, PAGES, 65_536) == ()
    assert small_candidates([plain], MAIN, TITLES, 16_384) == (plain,)


def test_of_models_whose_speed_is_known_a_faster_one_is_a_candidate() -> None:
    fast = _model("fast", 4 * GIB, 60.0)
    assert small_candidates([fast], MAIN, TITLES, 16_384) == (fast,)
    assert small_candidates([fast], replace(MAIN, fit=None), TITLES, 16_384) == (fast,)


async def test_the_first_that_unloads_nothing_is_chosen_with_the_context_of_the_main_one() -> None:
    service = FakeService(_model("middle", 4 * GIB), _model("small", 2 * GIB), evicted={"middle": ("coder",)})
    chosen = await choose_small_model(service.client, "coder", PAGES, 65_536)
    assert chosen.model == TargetModel("small", 65_536)
    assert chosen.reason == "small with 65,536 tokens of context, which fits beside coder"
    assert service.asked == [("middle", 65_536), ("small", 65_536)]


@pytest.mark.parametrize(
    ("evicted", "why"), [(("coder",), "coder would be unloaded"), (None, "there is not enough memory")]
)
async def test_where_nothing_fits_the_main_model_does_it_and_the_reason_is_told(
    evicted: tuple[str, ...] | None, why: str
) -> None:
    service = FakeService(_model("middle", 4 * GIB), evicted={"middle": evicted})
    chosen = await choose_small_model(service.client, "coder", TITLES, 65_536)
    assert chosen.model is None
    assert chosen.reason == f"coder too: for middle with 16,384 tokens of context {why}"


async def test_a_library_without_a_smaller_model_is_told_at_once() -> None:
    service = FakeService(_model("half", 9 * GIB))
    chosen = await choose_small_model(service.client, "coder", PAGES, 65_536)
    assert service.n_lists == 1, "it is not read to its end"
    assert chosen.model is None
    assert "the library has no faster one of at most half its size whose template takes tools" in chosen.reason


async def test_a_model_that_does_not_load_as_planned_is_not_used() -> None:
    service, wanted = FakeService(), TargetModel("small", 65_536)
    assert await load_small_model(service.client, wanted, "coder") is None
    service.n_ctx = 8192
    short = await load_small_model(service.client, wanted, "coder")
    assert short is not None
    assert "small got 8,192 tokens of context of 65,536" in short.reason
    service.error = EngineError("The worker ended.", "Try again.")
    failed = await load_small_model(service.client, wanted, "coder")
    assert failed is not None
    assert failed.model is None
    assert "small could not be loaded. The worker ended." in failed.reason
