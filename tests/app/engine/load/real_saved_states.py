"""Loads a real model with a limit on the memory of models, and asks it more than fits into what that leaves for chats;
run as a child, for native code may end its process.

Usage: python real_saved_states.py MODEL.gguf FOLDER; prints JSON: `planned` bytes for chats and their `largest` sum
between two questions, the `files` of states on disk, `cached` tokens of the first question asked again, and the bytes
in memory while programs were `stalled`.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from app.engine.load import loading
from app.engine.load.loading import LoadListener, load_model
from app.engine.loop.core import Engine
from app.engine.messages import EngineConfig, Failed, Finished, Output
from app.engine.request import Request, SamplingParams
from app.protocol.plan import Plan

MIB = 1 << 20
N_CHATS, TIMEOUT_S = 16, 60.0


def load(path: Path, folder: Path, max_bytes: int) -> tuple[loading.LoadedEngine, Plan]:
    plans: list[Plan] = []
    listener = LoadListener(on_progress=lambda _: True, on_notice=lambda _: None, on_plan=plans.append)
    config = EngineConfig(n_ctx=1024, n_sequences=1, n_threads=1, max_bytes=max_bytes)
    return load_model(path, config, folder, listener), plans[0]


def main() -> None:
    path, folder = Path(sys.argv[1]), Path(sys.argv[2])
    unlimited, plan = load(path, folder, 0)
    unlimited.owned.close()
    loaded, plan = load(path, folder, sum(device.n_bytes for device in plan.devices) + 4 * MIB)
    ended: dict[str, Finished] = {}

    def note(event: Output | Finished | Failed) -> None:
        assert not isinstance(event, Failed), event
        if isinstance(event, Finished):
            ended[event.request_id] = event

    with loaded.owned:
        store = loaded.store
        assert store is not None
        engine = Engine(loaded.backend, note, store)

        def ask(name: str, number: int) -> None:
            prompt = tuple(100 + (number * 7919 + index * 31) % 900 for index in range(700))
            sampling = SamplingParams(temperature=0.0)
            engine.submit(Request(request_id=name, prompt=prompt, max_tokens=4, sampling=sampling, conversation="c"))
            while not engine.is_idle:
                engine.step()
            with store.writing():
                while engine.save_idle_sequence():
                    pass
                time.sleep(0.5)  # the writer waits for a pause

        largest = 0
        for number in range(N_CHATS):
            ask(f"chat {number}", number)
            largest = max(largest, store.memory_bytes)
        ask("again", 0)
        loading.memory_stalled_share = lambda: 1.0
        deadline_s = time.monotonic() + TIMEOUT_S
        while store.memory_bytes and time.monotonic() < deadline_s:
            time.sleep(0.1)
        print(
            json.dumps(
                {
                    "planned": plan.saved_chats_bytes,
                    "largest": largest,
                    "files": len(list((folder / "prefix").rglob("*-c"))),
                    "cached": ended["again"].usage.n_cached_tokens,
                    "stalled": store.memory_bytes,
                }
            )
        )
        engine.close()


if __name__ == "__main__":
    main()
