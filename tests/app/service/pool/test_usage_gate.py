from __future__ import annotations

import asyncio

from app.service.pool.usage_gate import EngineListener, UsageGate


async def test_an_open_gate_counts_uses_and_notifies_of_work() -> None:
    gate, events = UsageGate(), []
    gate.add_listener(
        EngineListener(lambda: events.append("work"), lambda: events.append("idle"), lambda: events.append("unloaded"))
    )
    await gate.enter()
    await gate.enter()
    assert (gate.n_users, events) == (2, ["work", "work"])
    gate.leave()
    assert (gate.n_users, events) == (1, ["work", "work"]), "the engine notifies of idleness: it may be loading"


async def test_a_closed_gate_blocks_new_uses_only() -> None:
    gate = UsageGate()
    await gate.enter()
    gate.close()
    late = asyncio.create_task(gate.enter())
    await asyncio.sleep(0)
    assert (gate.is_open, gate.n_users, late.done()) == (False, 1, False)
    gate.reopen()
    await late
    assert (gate.is_open, gate.n_users) == (True, 2)


async def test_a_use_cancelled_at_the_gate_is_not_counted() -> None:
    gate = UsageGate()
    gate.close()
    late = asyncio.create_task(gate.enter())
    await asyncio.sleep(0)
    late.cancel()
    await asyncio.wait({late})
    gate.reopen()
    await asyncio.sleep(0)
    assert gate.n_users == 0


def test_the_last_use_is_when_the_engine_became_idle() -> None:
    gate = UsageGate()
    begun_s = gate.last_used_s
    gate.notify_work()
    assert gate.last_used_s == begun_s
    gate.notify_idle()
    assert gate.last_used_s >= begun_s
