"""The connection, without a screen."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from app.connection import ServiceConnection
from app.protocol.errors import RequestError, ServiceError
from quantizer.gguf.gguf_reader import ModelFileError
from quantizer.system.errors import EngineError, ErrorInfo
from tests.app.client.scripted_client import LOADING, READY, ScriptedClient
from tests.tui.plans import split_plan


async def _comes_to(phase: str, connection: ServiceConnection) -> None:
    """Wait until `connection` is in `phase`."""
    async with asyncio.timeout(60):
        while connection.state.phase != phase:  # noqa: ASYNC110 - a few steps of this loop
            await asyncio.sleep(0)


async def test_nothing_is_opened_before_it_is_started():
    client = ScriptedClient()
    async with ServiceConnection(client.opened, "guide") as connection:
        await asyncio.sleep(0)
        assert (connection.state.phase, client.n_opened) == ("idle", 0)


async def test_client_waits_for_the_model_and_reports_the_way_there():
    client = ScriptedClient(model=replace(LOADING, progress=0.5))
    async with ServiceConnection(client.opened, "guide") as connection:
        seen = []
        connection.watch(lambda: seen.append((connection.state.phase, connection.state.progress)))
        waiting = asyncio.create_task(connection.client())
        await _comes_to("loading", connection)
        assert not waiting.done()
        client.model = READY
        assert await waiting is client
    assert seen == [("starting", 0.0), ("loading", 0.5), ("ready", 1.0)]
    assert client.n_closed == 1


async def test_failed_load_is_raised_and_the_next_call_tries_again():
    client = ScriptedClient(model=replace(READY, state="failed", error=ErrorInfo.of(ModelFileError("Cut short."))))
    async with ServiceConnection(client.opened, "guide") as connection:
        with pytest.raises(ModelFileError, match="Cut short"):
            await connection.client()
        assert connection.state.phase == "failed"
        client.model = READY
        assert await connection.client() is client


@pytest.mark.parametrize(
    ("error", "n_opened"), [(ServiceError("gone"), 2), (EngineError("died"), 1), (RequestError("bad grammar"), 1)]
)
async def test_only_a_lost_service_is_opened_again(error, n_opened):
    client = ScriptedClient()
    async with ServiceConnection(client.opened, "guide") as connection:
        await connection.client()
        await connection.report_failure(error)
        assert await connection.client() is client
    assert client.n_opened == client.n_closed == n_opened


async def test_a_lost_service_is_reopened_at_once_and_its_loss_reported_once():
    client, losses = ScriptedClient(), []
    async with ServiceConnection(client.opened, "guide") as connection:
        connection.on_disconnect(lambda: losses.append(connection.state.phase))
        await connection.client()
        await asyncio.gather(
            *(connection.report_failure(ServiceError(f"gone, says {who}")) for who in ("answer", "jobs"))
        )
        assert connection.state.phase == "starting"
        assert await connection.client() is client
        assert (client.n_opened, client.n_closed) == (2, 1)
    assert losses == ["starting"]


async def test_a_service_that_is_lost_before_it_was_ready_waits_for_the_next_question():
    client = ScriptedClient(model=LOADING)
    async with ServiceConnection(client.opened, "guide") as connection:
        connection.start()
        await connection.service()
        await _comes_to("loading", connection)
        await connection.report_failure(ServiceError("gone"))
        assert (connection.state.phase, client.n_opened, client.n_closed) == ("failed", 1, 1)
        client.model = READY
        assert await connection.client() is client


async def test_the_new_connection_waits_until_the_lost_one_is_closed():
    client, steps = ScriptedClient(), []

    @asynccontextmanager
    async def opened():
        steps.append("open")
        try:
            yield client
        finally:
            await asyncio.sleep(0.02)
            steps.append("closed")

    async with ServiceConnection(opened, "guide") as connection:
        await connection.client()
        await connection.report_failure(ServiceError("gone"))
        await connection.client()
    assert steps == ["open", "closed", "open", "closed"]


async def test_model_that_the_service_forgot_is_an_error():
    client = ScriptedClient()

    async def load(model, when_unfit):
        return "another"

    client.load = load
    async with ServiceConnection(client.opened, "guide") as connection:
        with pytest.raises(ServiceError, match="another"):
            await connection.client()


async def test_bug_in_the_opener_is_raised_and_not_waited_for():
    @asynccontextmanager
    async def broken():
        raise ZeroDivisionError
        yield

    connection = ServiceConnection(broken, "guide")
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(connection.client(), 60)


async def test_leaving_while_loading_closes_the_service():
    client = ScriptedClient(model=LOADING)
    async with ServiceConnection(client.opened, "guide") as connection:
        connection.start()
        await _comes_to("loading", connection)
    assert client.n_opened == client.n_closed == 1


async def test_another_model_is_loaded_while_the_first_one_still_loads():
    client = ScriptedClient(model=replace(LOADING, id="first"))
    async with ServiceConnection(client.opened, "first") as connection:
        connection.start()
        assert await connection.service() is client
        assert connection.state.phase != "ready"
        client.model = replace(READY, id="second")
        await connection.use_model("second")
        await connection.client()
        assert (connection.state.phase, connection.state.model, client.n_opened) == ("ready", "second", 1)


async def test_service_is_there_although_its_model_failed():
    client = ScriptedClient(model=replace(READY, state="failed", error=ErrorInfo.of(ModelFileError("Cut short."))))
    async with ServiceConnection(client.opened, "guide") as connection:
        with pytest.raises(ModelFileError):
            await connection.client()
        assert await connection.service() is client
        assert client.n_closed == 0


async def test_every_callback_is_called_for_every_change():
    calls: list[str] = []
    async with ServiceConnection(ScriptedClient().opened, "guide") as connection:
        connection.watch(lambda: calls.append("one"))
        connection.watch(lambda: calls.append("two"))
        await connection.client()
    assert calls.count("one") == calls.count("two") > 0


async def test_the_state_contains_the_plan_of_the_model():
    brief = split_plan("partial", 20, 33, "20 of 33 layers fit.", "--ctx 4096")
    client = ScriptedClient(model=replace(READY, plan=brief))
    async with ServiceConnection(client.opened, "guide") as connection:
        await connection.client()
        assert connection.state.plan == brief


async def test_a_model_that_was_unloaded_is_noted_and_loaded_again_for_the_next_answer():
    client, phases = ScriptedClient(), []
    async with ServiceConnection(client.opened, "guide", check_s=0.0) as connection:
        connection.watch(lambda: phases.append(connection.state.phase))
        await connection.client()
        client.model = replace(READY, state="unloaded")
        await _comes_to("unloaded", connection)

        async def load(model, when_unfit):
            client.model = READY
            return "guide"

        client.load = load
        assert await connection.client() is client
    assert phases == ["starting", "ready", "unloaded", "loading", "ready"]


async def test_a_service_that_is_gone_is_opened_again_before_a_question_is_sent_to_it():
    client, losses = ScriptedClient(), []
    answering = client.status

    async def gone():
        client.status = answering
        raise ServiceError("gone")

    async with ServiceConnection(client.opened, "guide") as connection:
        connection.on_disconnect(lambda: losses.append("lost"))
        await connection.client()
        client.status = gone
        assert await connection.client() is client
        assert (client.n_opened, connection.state.phase, losses) == (2, "ready", ["lost"])


async def test_what_was_found_in_the_services_place_is_told_with_the_models_notices():
    client = ScriptedClient()
    client.notices = ("The localllm of another user listens there.",)
    async with ServiceConnection(client.opened, "guide") as connection:
        await connection.client()
        assert connection.state.notices[:1] == client.notices
