"""Placements of 40 pairs of a model and a card's memory, with the predicted speeds of prompts and answers.

The machine is one with an RTX 3060's bandwidth and link, whatever memory its card has, and 64 GiB beside it. Nothing is
loaded. `--save FILE` writes the placements, `--before FILE` compares with those that another version wrote, predicted
by the same cost model: what that version chose, not what it believed.

    python tests/bench/plans/placements.py [--save FILE] [--before FILE]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

from offload.devices.machine import Machine
from offload.footprint.kv_cache import KvTypes
from offload.footprint.model import ModelProfile, PlannedModel, RunConfig
from offload.plan import plan
from offload.speed.cost_model import expected_rates
from quantizer.gguf.tensor_types import file_type_named
from tests.offload.machines import MACHINES
from tests.offload.model_outlines import header_of

if TYPE_CHECKING:
    from offload.placement.shares import Placement

MODELS = (
    ("llama-3.2-1b", "Q4_K_M"),
    ("qwen3-0.6b", "Q8_0"),
    ("gemma-3-4b", "Q4_K_M"),
    ("llama-3.1-8b", "Q4_K_M"),
    ("gemma-2-9b", "Q8_0"),
    ("gpt-oss-20b", "Q4_K_M"),
    ("qwen3-30b-a3b", "Q4_K_M"),
    ("llama-3.3-70b", "Q4_K_M"),
)
CARD_GIB = (0.7, 2, 4, 8, 11.5)
MACHINE = MACHINES["RTX 3060 12 GB, 32 GB RAM"]
QUESTION = RunConfig(kv_types=KvTypes(), n_sequences=8, is_fused=True)
GIB = 1 << 30


def machine_with(card_gib: float) -> Machine:
    host = replace(MACHINE.host, total_bytes=64 * GIB, free_bytes=58 * GIB, n_cores=8)
    size = int(card_gib * GIB)
    return Machine(host, (replace(MACHINE.gpus[0], total_bytes=size, free_bytes=size),))


def pairs() -> Iterator[tuple[str, PlannedModel, float, Machine]]:
    for name, file_type in MODELS:
        header = header_of(name)
        model = PlannedModel(header, header.tensors).quantized(file_type_named(file_type))
        for card_gib in CARD_GIB:
            yield f"{name} {file_type}", model, card_gib, machine_with(card_gib)


def chosen(model: PlannedModel, machine: Machine) -> dict[str, Any] | None:
    """Return the placement of `model` as an object that other versions can read; None where none fits."""
    found = plan(model, QUESTION, machine, expected_rates(machine), wants_remedies=False)
    at, run_config = found.assessment.placement, found.run_config
    if at is None:
        return None
    return {
        "gpus": at.gpus,
        "gpu_layers": at.gpu_layers,
        "n_split": at.n_split,
        "n_crossings": at.n_crossings,
        "has_cache_on_host": at.has_cache_on_host,
        "prompt_gpu": getattr(at, "prompt_gpu", _usual_prompt_gpu(at, len(found.assessment.profile.layers))),
        "n_cells": run_config.n_cells,
        "n_ctx": run_config.n_ctx,
        "n_ubatch": run_config.n_ubatch,
        "is_fused": run_config.is_fused,
        "depth": run_config.depth,
    }


def _usual_prompt_gpu(at: Placement, n_layers: int) -> str:
    """Return the GPU that computed prompts with the processor's weights before that was a choice: any with layers."""
    leaves_weights = at.n_on_gpus < n_layers or at.n_split
    return at.gpus[0] if at.n_on_gpus and leaves_weights else ""


def timed(model: PlannedModel, machine: Machine, saved: dict[str, Any]) -> tuple[Placement, ModelProfile]:
    """Return a saved placement with its seconds by today's cost model."""
    from offload.placement.shares import (  # earlier versions have no such module
        Placement,
        allocate,
        seconds_of,
        turn_of,
    )

    sizes = {name: saved[name] for name in ("n_cells", "n_ctx", "n_ubatch", "is_fused", "depth")}
    profile, rates = model.profile(replace(QUESTION, **sizes)), expected_rates(machine)
    names = ("gpus", "gpu_layers", "n_split", "n_crossings", "has_cache_on_host", "prompt_gpu")
    at = Placement(**{name: _tuples(saved[name]) for name in names}, token_s=0.0)
    shares = allocate(profile, machine, at)
    prompt_s, token_s = seconds_of(profile, machine, rates, shares, at)
    turn_s = turn_of(profile).seconds(prompt_s, token_s)
    return replace(at, token_s=token_s, prompt_s=prompt_s, turn_s=turn_s), profile


def _tuples(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def told(at: Placement, profile: ModelProfile) -> str:
    layers = f"{at.n_on_gpus}/{len(profile.layers)}"
    n_split = max(0, at.n_split - (len(profile.layers) - at.n_on_gpus)) if at.n_on_gpus else 0
    layers += f" -{n_split}" if n_split else ""
    layers += " c" if at.has_cache_on_host else ""
    return f"{layers:>10} {profile.run_config.n_ubatch:>5} {'GPU' if at.prompt_gpu else '':>4}"


def figures(at: Placement) -> str:
    return f"{1 / at.token_s:>7.1f} {1 / at.prompt_s:>7,.0f} {at.turn_s:>7.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", type=Path, help="write the placements of this version")
    parser.add_argument("--before", type=Path, help="placements of another version, to be compared")
    options = parser.parse_args()
    found = {f"{name}, {card_gib:g} GiB": chosen(model, machine) for name, model, card_gib, machine in pairs()}
    if options.save:
        options.save.write_text(json.dumps(found, indent=1), encoding="utf-8")
        return
    before = json.loads(options.before.read_text(encoding="utf-8")) if options.before else {}
    print("Layers on the GPU of all (-n: of them without experts or feed-forward; c: cache with the processor), batch,")
    print("whether the GPU computes prompts of the rest; answers and prompts in tokens a second, a turn in seconds.")
    heading = f"{'layers':>10} {'batch':>5} {'':>4} {'answer':>7} {'prompt':>7} {'turn':>7}"
    print(f"{'':<24} {'GiB':>5} |{heading} |" + (f"{heading} | gain" if before else ""))
    gains = []
    for name, model, card_gib, machine in pairs():
        saved = [before.get(f"{name}, {card_gib:g} GiB")] if before else []
        saved.append(found[f"{name}, {card_gib:g} GiB"])
        rows = [None if each is None else timed(model, machine, each) for each in saved]
        cells = [
            "will not run".rjust(len(heading)) if each is None else f"{told(*each)} {figures(each[0])}" for each in rows
        ]
        gain = ""
        if len(rows) == 2 and rows[0] and rows[1]:
            gains.append(rows[0][0].turn_s / rows[1][0].turn_s)
            gain = f" {gains[-1]:.2f}"
        print(f"{name:<24} {card_gib:>5g} |" + " |".join(cells) + f" |{gain}")
    if gains:
        print(
            f"turns of {len(gains)} pairs: {geometric_mean(gains):.2f} times as fast, at most {max(gains):.2f}", end=""
        )
        print(f"; {sum(gain < 0.995 for gain in gains)} slower, at worst {min(gains):.2f}")


if __name__ == "__main__":
    main()
