"""Loads a model onto GPUs as planned and reports the result; a child, since native code may end it.

Usage: python real_placement.py MODEL.gguf CACHE_DIR GPUS N_CTX FREE_BYTES; prints one JSON object. GPUS is "" for the
processor alone, "real" for the GPUs of this machine, "real:N" for N layers on the first, or ENDPOINT,ENDPOINT for RPC
servers; "fetching:ENDPOINT" is one that gets no layer and computes prompts. FREE_BYTES is the assumed memory of each
GPU, 0 the reported one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from app.engine.backend import Chunk
from app.engine.llama import LlamaBackend, add_rpc_servers
from app.engine.load import planner as devices
from app.engine.load.loading import LoadListener, load_model
from app.engine.load.machine import detect_machine, list_gpus
from app.engine.messages import EngineConfig
from app.protocol.codec import encode
from offload.devices.machine import Machine
from offload.placement.load_parameters import DeviceUsage
from quantizer.system.errors import UserError
from tests.app.pseudo_gpu import let_fetch

FIRST_TOKENS = (1, 600, 1300, 2900)  # of prompts, as far as the vocabulary goes
N_PROMPT, N_TOKENS = 39, 16


def main() -> None:
    path, cache_dir = Path(sys.argv[1]), Path(sys.argv[2])
    where, _, n_layers = sys.argv[3].partition(":")
    is_real, is_fetching = where == "real", where == "fetching"
    endpoints = () if is_real else tuple(sys.argv[3].removeprefix("fetching:").split(",")) if where else ()
    report: dict[str, Any] = {"notices": []}
    check_load = devices.LoadDevices.check_load

    def watched(
        devices: devices.LoadDevices, attempt: object, usage: Mapping[str, DeviceUsage], key: str
    ) -> tuple[str, ...]:
        report["held"] = {name: asdict(used) for name, used in usage.items()}
        return check_load(devices, attempt, usage, key)  # type: ignore[arg-type]

    devices.LoadDevices.check_load = watched  # type: ignore[method-assign, assignment]
    n_ctx, free_bytes = int(sys.argv[4]), int(sys.argv[5])

    def fast(*arguments: Any) -> Machine:
        """Tiny models are fastest where they are: make the servers faster than any processor."""
        machine = detect_machine(*arguments)
        return Machine(
            replace(machine.host, bytes_per_s=1e6),
            tuple(
                replace(
                    gpu,
                    free_bytes=free_bytes or gpu.free_bytes,
                    bytes_per_s=1e12,
                    link_latency_s=None if is_fetching else 0.0,
                    speed=None,
                )
                for gpu in machine.gpus
            ),
        )

    devices.detect_machine = fast  # type: ignore[assignment]
    config = EngineConfig(
        n_ctx=n_ctx, n_cells=n_ctx, n_threads=1, n_sequences=2, uses_gpu=bool(sys.argv[3]), rpc=endpoints
    )
    if is_real and n_layers:
        (first, *_) = list_gpus((), cache_dir)
        config = replace(config, gpu_layers={first.name: int(n_layers)})
    if is_fetching:
        config = replace(config, gpu_layers={"RPC0": 0})
        add_rpc_servers(endpoints)
        let_fetch(["RPC0"])
        add_servers = "app.engine.llama.add_rpc_servers"
        patch(add_servers, lambda _endpoints: None).start()  # once: a second device would not fetch
        patch("app.engine.load.planner.check_reachable").start()
    listener = LoadListener(
        lambda _fraction: True, report["notices"].append, lambda plan: report.update(plan=encode(plan))
    )
    try:
        loaded = load_model(path, config, cache_dir, listener)
    except UserError as error:
        print(json.dumps(report | {"error": str(error), "kind": type(error).__name__}))
        return
    with loaded.owned:
        answers, margins = zip(*(greedy(loaded.backend, first) for first in FIRST_TOKENS), strict=True)
        report |= {"answers": answers, "margins": margins, "is_on_host": loaded.backend.facts.is_on_host}
        report["step_ratios"] = loaded.step_cost.ratios
        report["fetches_weights"] = loaded.backend.facts.fetches_weights
        print(json.dumps(report))


def greedy(backend: LlamaBackend, first: int) -> tuple[list[int], list[float]]:
    """Return the most likely next tokens, and by how much each precedes the second."""
    backend.truncate(0, 0)
    prompt = tuple(1 + (first + index) % (backend.facts.n_vocab - 1) for index in range(N_PROMPT))
    answer, margins, chunk = list[int](), list[float](), Chunk(0, 0, prompt, 1)
    while len(answer) < N_TOKENS:
        backend.decode([chunk])
        logits = backend.logits(len(chunk.tokens) - 1)
        second, first = np.argsort(logits)[-2:]
        answer.append(int(first))
        margins.append(float(logits[first] - logits[second]))
        chunk = Chunk(0, len(prompt) + len(answer) - 1, (int(first),), 1)
    return answer, margins


if __name__ == "__main__":
    main()
