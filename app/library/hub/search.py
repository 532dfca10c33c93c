"""Search of the hub: the GGUFs and convertible checkpoints that match, and a fit for every quant before any download.

Owns the query through huggingface-hub, with limits on time and size, and how many repositories are inspected at once.
Little of the hub's metadata is used, because a model's own header is more reliable. A repository that fails has its
`problem`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from app import __version__
from app.common.outbound import client_options
from app.library.download.http_session import HttpSession
from app.library.hub.access import HubAccess, HubError, async_http_client, certificate_error, unreachable_error
from app.library.hub.remote_model import QUICK_RETRIES, read_remote_model
from app.library.hub.repository import fetch_config, fetch_repository
from app.library.hub.selection import families_of, quants_of
from app.library.local.model_files import is_path
from app.library.machine_fit.planning import PlanningContext
from app.protocol.library import HubModel, HubRepository, Quant
from offload.footprint.model import PlannedModel
from quantizer.architectures import ARCHITECTURES
from quantizer.convert.checkpoint_source import config_header
from quantizer.gguf.tensor_types import FILE_TYPES
from quantizer.system.errors import UsageError, UserError

if TYPE_CHECKING:
    import httpx2
    from huggingface_hub import ModelInfo

_TIMEOUT_S = 20.0
_MAX_BODY_BYTES = 32 << 20
_REMEDIES = {401: "Check HF_TOKEN.", 403: "Check HF_TOKEN.", 404: "That server is not a hub: check HF_ENDPOINT."}
_REPO = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_LICENCE_TAG = re.compile(r"license:([\w.+-]{1,64})")
_N_TOGETHER = 6
_LONGEST_S = 90.0  # for one repository: a very slow hub counts as stalled
_MOST_FAMILIES = 3  # of which headers are read; some repositories hold dozens of models
_CONVERTED = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M")


def list_repos(access: HubAccess, words: str, n_most: int, *, is_trending: bool = False) -> tuple[HubRepository, ...]:
    """Return at most `n_most` repositories of GGUFs and `n_most` convertible checkpoints, most downloaded first. With
    `is_trending` return GGUFs alone, in the order of the interest that the hub sees in them now. Raises HubError if the
    search fails, UsageError for a path, whose folders and names must not leave this machine."""
    if any(is_path(word.strip("'\"").removeprefix("file://")) for word in (words.strip(), *words.split())):
        raise UsageError("That is a path, which is never sent to the hub.", "Import the file: localllm import PATH.")
    if not words.isprintable():
        raise UsageError(f"The words {words!r} are not text.", "Write them in UTF-8.")
    from huggingface_hub import HfApi, constants, set_client_factory
    from huggingface_hub.errors import HfHubHTTPError

    set_client_factory(_bounded_client)
    constants.HF_HUB_DISABLE_TELEMETRY = True  # it would ask the hub for a list of agents, to report the one here
    api = HfApi(access.endpoint, access.token or False)
    wanted: dict[str, Any] = {"limit": n_most, "expand": ["downloads", "tags", "gated", "config"]}
    try:
        if is_trending:
            found = api.list_models(search=words or None, filter="gguf", sort="trending_score", **wanted)
            return tuple(_listed(found))[:n_most]
        wanted |= {"search": words, "sort": "downloads"}
        ggufs = list(_listed(api.list_models(filter="gguf", **wanted)))
        checkpoints = list(_listed(api.list_models(filter="safetensors", **wanted), are_checkpoints=True))
    except HfHubHTTPError as error:
        status = error.response.status_code
        cause = f"{access.endpoint} refuses the search with status {status}."
        raise HubError(cause, _REMEDIES.get(status, "Try again later.")) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise HubError("The hub's response to the search is invalid.", "Try again later.") from error
    return (*ggufs[:n_most], *checkpoints[:n_most])


def _listed(found: Iterable[ModelInfo], *, are_checkpoints: bool = False) -> Iterator[HubRepository]:
    for info in found:
        tags, classes = info.tags or (), (info.config or {}).get("architectures") or [""]
        is_wanted = ("gguf" in tags) != are_checkpoints and (not are_checkpoints or classes[0] in ARCHITECTURES)
        if not is_wanted or not _REPO.fullmatch(info.id):
            continue
        yield HubRepository(
            repo=info.id,
            is_checkpoint=are_checkpoints,
            n_downloads=max(0, int(info.downloads or 0)),
            licence=next((match[1] for tag in tags if (match := _LICENCE_TAG.fullmatch(str(tag)))), ""),
            is_gated=bool(info.gated),
        )


def _bounded_client() -> httpx2.Client:
    """Return the client for huggingface-hub: its own waits without limit and retries for half a minute."""
    import httpx2

    class BoundedClient(httpx2.Client):
        def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
            request.extensions["timeout"] = httpx2.Timeout(_TIMEOUT_S).as_dict()
            request.headers.update({"Accept-Encoding": "identity", "User-Agent": f"localllm/{__version__}"})
            url = str(request.url)
            try:
                with closing(super().send(request, **{**options, "stream": True})) as reply:
                    body = bytearray()
                    for piece in reply.iter_raw():
                        body += piece
                        if len(body) > _MAX_BODY_BYTES:
                            raise HubError("The hub's response to the search is too large.", "Try again later.")
            except httpx2.RequestError as error:
                refused = certificate_error(url, error)
                raise refused or unreachable_error(url, str(error) or type(error).__name__) from error
            if reply.status_code == 429 or reply.status_code >= 500:
                raise unreachable_error(url, f"it answers {reply.status_code}")
            return httpx2.Response(reply.status_code, headers=reply.headers, content=bytes(body), request=request)

    return BoundedClient(follow_redirects=True, **client_options(httpx2.HTTPTransport))


async def inspect_repos(
    listed: Sequence[HubRepository], access: HubAccess, here: PlanningContext, advance: Callable[[], None]
) -> list[HubRepository]:
    """Return `listed` with the models of each, in order; several are read at once, and `advance` is called for each."""
    limit = asyncio.Semaphore(_N_TOGETHER)

    async def inspect(each: HubRepository) -> HubRepository:
        async with limit:
            found = await _inspect(each, session, here)
        advance()
        return found

    async with async_http_client(QUICK_RETRIES.stall_s) as http:
        session = HttpSession(http, access)
        async with asyncio.TaskGroup() as group:
            readings = [group.create_task(inspect(each)) for each in listed]
    return [reading.result() for reading in readings]


async def _inspect(listed: HubRepository, session: HttpSession, here: PlanningContext) -> HubRepository:
    try:
        async with asyncio.timeout(_LONGEST_S):
            if listed.is_checkpoint:
                return replace(listed, models=(await _checkpoint(listed.repo, session, here),))
            repository = await fetch_repository(session, listed.repo, "", QUICK_RETRIES)
            if not repository.models:
                return replace(listed, problem=f"{listed.repo} has no complete GGUF model.")
            families, read = families_of(repository.models), []
            for family in families[:_MOST_FAMILIES]:
                files = [repository.remote(file, session.access) for file in family[0].files]
                planned = await read_remote_model(session, files)
                read.append(_model(planned, quants_of(family, family[0], planned, here)))
            return replace(listed, models=tuple(read), n_left_out=sum(map(len, families[_MOST_FAMILIES:])))
    except TimeoutError:
        return replace(listed, problem="It takes too long.")
    except UserError as error:
        return replace(listed, problem=error.cause)


async def _checkpoint(repo: str, session: HttpSession, here: PlanningContext) -> HubModel:
    """Return a checkpoint in the usual types, from its config.json."""
    header = config_header(await fetch_config(session, repo, QUICK_RETRIES), repo.rpartition("/")[2])
    outline = PlannedModel(header, header.tensors)
    converted = [(name, outline.quantized(FILE_TYPES[name])) for name in _CONVERTED]
    return _model(outline, [Quant(name, model.n_bytes, here.fit(model)) for name, model in converted])


def _model(planned: PlannedModel, quants: Sequence[Quant]) -> HubModel:
    largest_first = tuple(sorted(quants, key=lambda quant: -quant.n_bytes))
    return HubModel(planned.header.architecture, planned.n_parameters, planned.n_ctx_train, largest_first)
