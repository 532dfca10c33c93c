"""Load planned placements onto GPUs and compare the bytes that llama.cpp logs with the plan, and with its formula.

Run: `uv run python tests/bench/plans/place_layers.py [--runs 100] [--seed 0] [--real]`. The GPUs are two pseudo-GPUs,
RPC servers on this machine that fetch the processor's weights for prompts as GPUs do, or `--real` those that this build
of llama.cpp lists. Each run draws a model at a reduced
shape, a context and the free memory of each device, and plans as loading does. The plan must load, with the weights,
cache and compute buffers of each device within 3 % of the plan, and never more in all than was free.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

from app.engine.llama.devices import add_rpc_servers, buffer_bytes_by_device, ggml_gpus
from app.engine.llama.model import PlacementParams, dry_compute_bytes, dry_context_params
from app.engine.llama.native import lib, native_log
from offload.devices.gpus import distinct_gpus
from offload.devices.machine import Device, DeviceKind, Machine
from offload.footprint.kv_cache import parse_kv_types
from offload.footprint.model import PlannedModel, RunConfig
from offload.placement.load_parameters import DeviceUsage, LoadParameters
from offload.placement.shares import Share, allocate
from offload.plan import dry_plan, parameters_of
from offload.speed.cost_model import expected_rates
from tests.app.pseudo_gpu import free_ports, let_fetch, pseudo_gpus
from tests.offload import model_outlines
from tests.offload.model_outlines import OUTLINES, header_of, write_outline

MIB = 1 << 20
TOLERANCE = 0.03
ROUNDED_BYTES = MIB // 20  # what rounding may hide
N_GPUS, N_SEQUENCES = 2, 2
Held = Mapping[str, DeviceUsage]
REDUCED = {
    "llama-3.1-8b": {"n_embd": 1024, "n_ff": 3584, "n_heads": 8, "n_kv_heads": 2, "n_vocab": 16_384},
    "qwen3-0.6b": {"n_ff": 2048, "n_vocab": 16_384},
    "gemma-3-4b": {"n_embd": 1024, "n_ff": 2048, "n_heads": 4, "n_kv_heads": 2, "n_vocab": 16_384},
    "qwen3-30b-a3b": {"n_embd": 512, "n_experts": 16, "n_used": 4, "n_expert_ff": 256, "n_vocab": 16_384},
    "lfm2-350m": {"n_vocab": 16_384},
}


def drawn(chance: random.Random, model: PlannedModel, names: Sequence[str]) -> tuple[RunConfig, Machine]:
    """Draw a context and memory limits around what the model takes."""
    n_ctx = chance.choice((512, 2048, 4096))
    kv_types = parse_kv_types(chance.choice(("f16", "q8_0")))
    setting = RunConfig(n_ctx=n_ctx, n_cells=n_ctx, kv_types=kv_types, n_sequences=N_SEQUENCES)
    total = model.profile(setting).total_bytes
    gpus = [
        Device(
            name=name,
            kind=DeviceKind.GPU,
            total_bytes=total,
            free_bytes=int(total * chance.uniform(0.02, 0.9)) + 256 * MIB,
            bytes_per_s=chance.choice((400e9, 900e9)),
        )
        for name in names
    ]
    host = Device(name="CPU", kind=DeviceKind.CPU, total_bytes=1 << 40, free_bytes=1 << 40, bytes_per_s=50e9)
    n_ubatch = chance.choice((512, 2048))
    question = RunConfig(n_ctx=n_ctx, n_cells=n_ctx, kv_types=kv_types, n_sequences=N_SEQUENCES, n_ubatch=n_ubatch)
    return question, Machine(host, tuple(gpus))


def load(path: Path, wanted: LoadParameters, setting: RunConfig) -> Held:
    """Load as planned, make the context, free both and return what each device held."""
    log, placing = native_log(), PlacementParams(wanted)
    params = lib.llama_model_default_params()
    placing.fill(params)
    params.use_extra_bufts = False
    params.load_mode = lib.LLAMA_LOAD_MODE_NONE  # of a mapping the whole span would be logged
    log.take_buffers()
    model = lib.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        sys.exit(log.last_lines())
    context = lib.llama_init_from_model(model, dry_context_params(model, setting, wanted))
    if not context:
        sys.exit(log.last_lines())
    lib.llama_free(context)
    lib.llama_model_free(model)
    return buffer_bytes_by_device(log.take_buffers())


def faults(shares: Sequence[Share], held: Held) -> list[str]:
    """Return where a device got other bytes than planned, or more in all than it had."""
    found = []
    for share in shares:
        got = held[share.device.name]
        planned = share.n_bytes - share.host_bytes
        if abs(planned - got.n_bytes) > TOLERANCE * planned + ROUNDED_BYTES:
            found.append(f"{share.device.name}: planned {planned / MIB:.1f} MiB, got {got.n_bytes / MIB:.1f}")
        if share.n_bytes and got.n_bytes > share.device.free_bytes:
            found.append(f"{share.device.name}: got more than the {share.device.free_bytes / MIB:.1f} MiB it had")
    return found


def worst_error(shares: Sequence[Share], held: Held) -> float:
    """Return the largest share by which what a device in use got is off what was planned for it."""
    planned = {share.device.name: share.n_bytes - share.host_bytes for share in shares if share.n_bytes}
    return max((abs(held[name].n_bytes / n_bytes - 1) for name, n_bytes in planned.items()), default=0.0)


def run_all(n_runs: int, seed: int, names: Sequence[str]) -> int:
    chance, n_faulty, formula_errors = random.Random(seed), 0, list[float]()
    with tempfile.TemporaryDirectory() as folder:
        for index in range(n_runs):
            name = chance.choice(list(REDUCED))
            path = Path(folder) / f"{name}.gguf"
            if not path.exists():
                write_outline(name, path)
            header = header_of(name)
            model = PlannedModel(header, header.tensors)
            question, machine = drawn(chance, model, names)
            rates = expected_rates(machine)
            found = dry_plan(model, question, machine, rates, partial(dry_run, path))
            held = load(path, parameters_of(found.assessment), found.run_config)
            placement, shares = found.assessment.placement, found.assessment.shares
            assert placement is not None
            wrong = faults(shares, held)
            n_faulty += bool(wrong)
            formula = allocate(model.profile(found.run_config), machine, placement)
            on_gpus = [share for share in formula if share.device.kind is not DeviceKind.CPU]
            formula_errors.append(worst_error(on_gpus, held))
            outcome = "; ".join(wrong) or f"as planned, off by {worst_error(shares, held):.2%}"
            outcome += f" (by formula {formula_errors[-1]:.2%})"
            prompts = f"{found.run_config.n_ubatch} {placement.prompt_gpu or 'CPU':>4}"
            layers = f"{placement.gpu_layers} split {placement.n_split}"
            print(f"{index:3} {name:14} {layers:18} prompts {prompts}: {outcome}", flush=True)
    print(f"on GPUs by formula alone: median {median(formula_errors):.1%}, worst {max(formula_errors):.1%}")
    return n_faulty


def dry_run(path: Path, setting: RunConfig, parameters: LoadParameters) -> dict[str, int]:
    return dry_compute_bytes(path, setting, parameters)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--real", action="store_true", help="use the GPUs of this machine")
    options = parser.parse_args()
    for name, changes in REDUCED.items():
        model_outlines.OUTLINES[name] = replace(OUTLINES[name], **changes)
    lib.llama_backend_init()
    with nullcontext([]) if options.real else pseudo_gpus(free_ports(N_GPUS)) as endpoints:
        add_rpc_servers(endpoints)
        if not (names := [gpu.name for gpu in distinct_gpus(ggml_gpus())]):
            sys.exit("this build of llama.cpp lists no GPU")
        if not options.real:
            let_fetch(names)
        n_faulty = run_all(options.runs, options.seed, names)
    print(f"{n_faulty} of {options.runs} otherwise than planned")
    sys.exit(n_faulty > 0)


if __name__ == "__main__":
    main()
