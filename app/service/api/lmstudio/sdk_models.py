"""The endpoints of LM Studio's SDK that find, load and unload models, the same in `llm` and `embedding`.

A model has one instance: loading it again with other options replaces it.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated, Any, Literal, cast

from pydantic import Field, StrictInt, StrictStr

from app.common.keys import KeyScope
from app.library.local.model_files import ModelRef
from app.library.local.resolve import UnknownModelError
from app.protocol.errors import RequestError
from app.service.api.app_state import unload
from app.service.api.fields import Body
from app.service.api.lmstudio.model_routes import (
    Domain,
    SdkObject,
    begin_loading,
    domain_of,
    instance_info,
    loading,
    model_info,
)
from app.service.api.lmstudio.sdk_requests import ConfigStack, change_of_loading, load_fields, sdk_config
from app.service.api.lmstudio.sdk_session import (
    Channel,
    Context,
    Endpoint,
    NoParameter,
    no_model_for,
    no_model_with_path,
)
from app.service.models.served_model import ServedModel

_MAX_INSTANCES = 256
Milliseconds = Annotated[StrictInt, Field(ge=1, le=10**12)]


class _Query(Body):
    """The properties of a model; without any the loaded one is meant."""

    identifier: StrictStr = ""
    path: StrictStr = ""
    vision: bool | None = None


class _Specifier(Body):
    type: Literal["query", "instanceReference"]
    query: _Query = _Query()
    instanceReference: StrictStr = ""  # noqa: N815


class SpecifierBody(Body):
    """A model, under either of the names that endpoints have for this field."""

    specifier: _Specifier | None = None
    modelSpecifier: _Specifier | None = None  # noqa: N815

    @property
    def wanted(self) -> _Specifier:
        specifier = self.specifier or self.modelSpecifier
        if specifier is None:
            raise RequestError("No model is specified.", "Send a specifier.")
        return specifier


class _LoadBody(Body):
    modelKey: StrictStr  # noqa: N815
    identifier: StrictStr = ""
    ttlMs: Milliseconds | None = None  # noqa: N815
    loadConfigStack: ConfigStack = ConfigStack()  # noqa: N815


class _GetOrLoadBody(Body):
    identifier: StrictStr
    loadTtlMs: Milliseconds | None = None  # noqa: N815
    loadConfigStack: ConfigStack = ConfigStack()  # noqa: N815


class _UnloadBody(Body):
    identifier: StrictStr


class _InfoBody(SpecifierBody):
    throwIfNotFound: bool = False  # noqa: N815


async def model_for(context: Context, specifier: _Specifier) -> ServedModel:
    """Return the model that `specifier` means, which its use loads. Raises NotFoundError."""
    query = specifier.query
    name = specifier.instanceReference or query.identifier or query.path
    if not name and not query.vision:
        return _used(context, await _any_model(context))
    wanted = query.model_dump(exclude_unset=True)
    try:
        named = await _named(context, name) if name else None
    except UnknownModelError as error:
        raise no_model_for(wanted, error, _loaded_names(context)) from error
    if named and not query.vision:
        return named
    loaded = [model for model in context.state.models.opened if model.is_loaded]
    seeing = next((model for model in ([named] if named else loaded) if model.senses.sees), None)
    if seeing is None:
        which = f"{named.ref.id} does not see" if named else "No loaded model sees"
        blind = UnknownModelError(f"{which} pictures.", "Leave `vision` out, or load a model that does.")
        raise no_model_for(wanted, blind, _loaded_names(context))
    return _used(context, seeing)


async def _named(context: Context, name: str) -> ServedModel:
    return _used(context, await context.state.models.answering(context.state.instances.get(name, name)))


def _used(context: Context, model: ServedModel) -> ServedModel:
    """Return `model` for one call, in which it is not unloaded as idle."""
    context.record.until_end.enter_context(model.keep_alive.in_request())
    return model.for_request(context.record)


async def _any_model(context: Context) -> ServedModel:
    """Return a loaded model of the domain, else an installed one, else the default, which can do either."""
    models = context.state.models
    described = await models.catalog.list_with_facts()
    of_domain = [(ref, models.serving(ref)) for ref, facts in described if domain_of(facts) == context.domain]
    loaded = next((model for _, model in of_domain if model is not None and model.is_loaded), None)
    if loaded is not None:
        return loaded
    if context.domain == "embedding" and of_domain:
        return await models.named(of_domain[0][0].id)
    return models.default


def _loaded_names(context: Context) -> list[str]:
    return [model.ref.id for model in context.state.models.opened if model.is_loaded]


def _identifier(context: Context, ref: ModelRef) -> str:
    return next((name for name, model_id in context.state.instances.items() if model_id == ref.id), "")


async def described(context: Context, model: ServedModel) -> Any:
    facts = await context.state.models.catalog.facts(model.ref)
    return instance_info(model, facts, cast("Domain", context.domain), _identifier(context, model.ref))


async def _resolved(context: Context, path: str) -> tuple[ServedModel, SdkObject]:
    """Return the model that a client loads by `path`, and its description. Raises NotFoundError, RequestError."""
    try:
        model = await _named(context, path)
    except UnknownModelError as error:
        present = [ref.id for ref in await context.state.models.catalog.list_models()]
        raise no_model_with_path(path, error, present) from error
    facts = await context.state.models.catalog.facts(model.ref)
    if context.domain == "llm" and facts.only_embeds:
        raise RequestError(f"{model.ref.id} cannot write: it is an embedding model.", "Use it for embeddings.")
    return model, model_info(model.ref, facts, cast("Domain", context.domain), model.senses)


async def _load_model(context: Context, body: _LoadBody, channel: Channel) -> None:
    model, info = await _resolved(context, body.modelKey)
    await channel.send({"type": "resolved", "info": info})
    if not await _load(context, model, body.loadConfigStack, body.ttlMs, channel, "progress"):
        return
    instances = context.state.instances
    if body.identifier and body.identifier != model.ref.id:
        instances.pop(body.identifier, None)
        instances[body.identifier] = model.ref.id
        while len(instances) > _MAX_INSTANCES:
            del instances[next(iter(instances))]
    await channel.send({"type": "success", "info": await described(context, model)})


async def _get_or_load(context: Context, body: _GetOrLoadBody, channel: Channel) -> None:
    model, info = await _resolved(context, body.identifier)
    if model.status.state == "ready":
        await channel.send({"type": "alreadyLoaded", "info": await described(context, model)})
        return
    await channel.send({"type": "startLoading", "identifier": model.ref.id, "info": info})
    if await _load(context, model, body.loadConfigStack, body.loadTtlMs, channel, "loadProgress"):
        await channel.send({"type": "loadSuccess", "info": await described(context, model)})


async def _load(
    context: Context, model: ServedModel, stack: ConfigStack, ttl_ms: int | None, channel: Channel, kind: str
) -> bool:
    """Load `model` with the options of `stack` and send the progress; return False where the client cancels. Raises
    RequestError where that would end running answers."""
    was_held = model.keep_alive.is_holding
    change, ignored = change_of_loading(stack.fields_of())
    context.record.ignored = (*context.record.ignored, *ignored)
    await begin_loading(context.state.models, model, change)
    if ttl_ms is not None:
        model.keep_alive.set_idle_limit(ttl_ms / 1000)
    async with aclosing(loading(model)) as fractions:
        async for fraction in fractions:
            if channel.is_cancelled.is_set():
                break
            await channel.send({"type": kind, "progress": fraction})
        else:
            await channel.send({"type": kind, "progress": 1.0})
            return True
    if not was_held:  # unload it once it is loaded, unless others hold or use it
        model.keep_alive.expire()
    return False


async def _unload_model(context: Context, body: _UnloadBody) -> None:
    wanted = context.state.instances.get(body.identifier, body.identifier)
    try:
        ref = await context.state.models.find(wanted)
    except UnknownModelError as error:
        raise no_model_for({"identifier": body.identifier}, error, _loaded_names(context)) from error
    model = context.state.models.serving(ref)
    if model is None or not model.is_loaded:
        idle = UnknownModelError(f"{ref.id} is not loaded.", "Nothing has to be unloaded.")
        raise no_model_for({"identifier": body.identifier}, idle, _loaded_names(context))
    unload(model)
    for name in [name for name, model_id in context.state.instances.items() if model_id == ref.id]:
        del context.state.instances[name]


async def _list_loaded(context: Context, _: NoParameter) -> list[Any]:
    ready = {model.ref: model for model in context.state.models.opened if model.status.state == "ready"}
    found = await context.state.models.catalog.with_facts(tuple(ready))
    domain = cast("Domain", context.domain)
    return [
        instance_info(ready[ref], facts, domain, _identifier(context, ref))
        for ref, facts in found
        if domain_of(facts) == domain
    ]


async def _model_info(context: Context, body: _InfoBody) -> Any:
    """Return the description of a model. One that is not loaded is loaded for it, unless it may be absent."""
    model = await model_for(context, body.wanted)
    if model.status.state != "ready" and not body.throwIfNotFound:
        return None
    await model.ready()
    return await described(context, model)


async def _load_config(context: Context, body: SpecifierBody) -> Any:
    model = await model_for(context, body.wanted)
    facts = await model.ready()
    return sdk_config(load_fields(context.domain, model.engine.config, facts))


async def _base_prediction_config(context: Context, body: SpecifierBody) -> Any:
    """Return what a prediction begins with: a model's recipe is applied here and not by clients."""
    await model_for(context, body.wanted)
    return sdk_config({})


async def _processing_state(context: Context, body: SpecifierBody) -> dict[str, Any]:
    model = await model_for(context, body.wanted)
    metrics = await model.engine.metrics() if model.is_loaded else None
    n_running = metrics.occupancy.n_running if metrics else 0
    return {"status": "generating" if n_running else "idle", "queued": max(0, model.engine.n_running - n_running)}


MODEL_ENDPOINTS = {
    "loadModel": Endpoint(_LoadBody, stream=_load_model, scope=KeyScope.MANAGE),
    "getOrLoad": Endpoint(_GetOrLoadBody, stream=_get_or_load),
    "unloadModel": Endpoint(_UnloadBody, _unload_model, scope=KeyScope.MANAGE),
    "listLoaded": Endpoint(NoParameter, _list_loaded),
    "getModelInfo": Endpoint(_InfoBody, _model_info),
    "getLoadConfig": Endpoint(SpecifierBody, _load_config),
    "getBasePredictionConfig": Endpoint(SpecifierBody, _base_prediction_config),
    "getInstanceProcessingState": Endpoint(SpecifierBody, _processing_state),
}
