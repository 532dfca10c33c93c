"""A pulled model is sampled as its makers recommend: by the repository, or by the one model that it was made of."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.library.download.downloader import DownloadOptions
from app.library.download.events import Chosen, Event
from app.library.download.http_session import HttpSession
from app.library.hub.access import HubAccess
from app.library.hub.reference import CatalogueReference, parse_reference
from app.library.hub.repository import Repository
from app.library.hub.selection import QuantChoice
from app.library.local.index import Index
from app.library.local.model_sampling import MAX_CONFIG_BYTES, generation_config_path
from app.library.pulling.puller import Puller, PullPlan, plan_model_pull
from tests.app.library.fetching import IMPATIENT
from tests.app.library.hub_repos import HubRepo
from tests.app.library.hub_server import HubServer

OWN, BASE = b'{"do_sample": true, "temperature": 0.6}', b'{"do_sample": true, "temperature": 0.7}'


@pytest.fixture
def pull(model: bytes, tmp_path: Path) -> Iterator[Callable[..., Awaitable[tuple[Path, list[Event]]]]]:
    """Pull from a hub whose repository has the given files and card."""
    base = HubRepo.of("maker/original", {"generation_config.json": BASE})
    gated = HubRepo.of("maker/gated", {"generation_config.json": BASE}, "manual")
    with HubServer(base, gated) as hub, Index(tmp_path) as index:

        async def pulled(card: Any = None, **files: bytes) -> tuple[Path, list[Event]]:
            events: list[Event] = []
            more = {} if card is None else {"cardData": card}
            named = {f"{name}.json": data for name, data in files.items()}
            hub.repos["org/repo"] = HubRepo.of("org/repo", {"m-Q4_0.gguf": model, **named}, **more)
            reference = parse_reference("org/repo", hub.url)
            assert not isinstance(reference, CatalogueReference)

            def only(repository: Repository) -> QuantChoice:
                return QuantChoice(repository.models[0], "There is no other.")

            async def plan(session: HttpSession) -> PullPlan:
                return await plan_model_pull(session, reference, tmp_path / "models", only)

            puller = Puller(HubAccess(hub.url, ""), index, DownloadOptions(retry=IMPATIENT), events.append)
            return await puller.pull(plan), events

        yield pulled


@pytest.mark.parametrize(
    ("card", "files", "kept"),
    [
        (None, {"generation_config": OWN}, OWN),
        ({"base_model": "maker/original"}, {"generation_config": OWN}, OWN),
        ({"base_model": "maker/original"}, {}, BASE),
        ({"base_model": ["maker/original"]}, {}, BASE),
    ],
)
async def test_what_the_makers_recommend_is_kept_beside_the_model(
    pull: Callable[..., Awaitable[tuple[Path, list[Event]]]], card: Any, files: dict[str, bytes], kept: bytes
) -> None:
    path, events = await pull(card, **files)
    assert generation_config_path(path).read_bytes() == kept
    (chosen,) = [event for event in events if isinstance(event, Chosen)]
    assert chosen.reason == "It is the only one. The sampling that its makers recommend comes with it."


@pytest.mark.parametrize(
    ("card", "files"),
    [
        (None, {}),
        ({"base_model": ["maker/original", "maker/gated"]}, {}),  # a merge
        ({"base_model": "maker/missing"}, {}),
        ({"base_model": "maker/gated"}, {}),
        ({"base_model": "../../etc/passwd"}, {}),
        ({"base_model": {"name": "maker/original"}}, {}),
        ({"base_model": [7]}, {}),
        (["base_model"], {}),
        (None, {"generation_config": b"{"}),
        (None, {"generation_config": b"[1]"}),
        (None, {"generation_config": b'{"eos_token_id": 2}'}),
        (None, {"generation_config": b'{"temperature": "hot"}'}),
        (None, {"generation_config": json.dumps({"temperature": 0.6, "x": "y" * MAX_CONFIG_BYTES}).encode()}),
    ],
)
async def test_a_model_without_such_a_word_or_with_nonsense_is_pulled_all_the_same(
    pull: Callable[..., Awaitable[tuple[Path, list[Event]]]], card: Any, files: dict[str, bytes]
) -> None:
    path, _events = await pull(card, **files)
    assert sorted(each.name for each in path.parent.iterdir()) == ["m-Q4_0.gguf"]


async def test_pulling_a_model_again_brings_the_word_that_came_later(
    pull: Callable[..., Awaitable[tuple[Path, list[Event]]]],
) -> None:
    path, _events = await pull()
    assert not generation_config_path(path).exists()
    await pull(generation_config=OWN)
    assert generation_config_path(path).read_bytes() == OWN
