"""Load planned placements onto two pseudo-GPUs, RPC servers on this machine, and compare the bytes that llama.cpp logs.

Run: `uv run python tests/bench/place_over_rpc.py [--runs 100] [--seed 0]`. Each run draws a model at a reduced shape, a
context and what each device has free. The plan must load, with the weights and cache of each device within 3 % of what
was planned, and never more in all than it had free; how far compute buffers are off is printed.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "offload"))

import model_outlines
from engine_log import EngineLog
from model_outlines import OUTLINES, header_of, write_outline

from app.engine.llama.native import ggml_function, lib
from offload.allocation import Share, allocate
from offload.kv_cache import parse_kv_types
from offload.load_parameters import LoadParameters, load_parameters
from offload.machine import Device, DeviceKind, Machine
from offload.model import PlannedModel
from offload.placement import place
from offload.profile import Setting
from offload.speed import expected_rates

MIB = 1 << 20
TOLERANCE = 0.03
PRINTED_MIB = 0.05  # what rounding may hide
N_GPUS = 2
REDUCED = {
    "llama-3.1-8b": {"n_embd": 1024, "n_ff": 3584, "n_heads": 8, "n_kv_heads": 2, "n_vocab": 16_384},
    "qwen3-0.6b": {"n_ff": 2048, "n_vocab": 16_384},
    "gemma-3-4b": {"n_embd": 1024, "n_ff": 2048, "n_heads": 4, "n_kv_heads": 2, "n_vocab": 16_384},
    "qwen3-30b-a3b": {"n_embd": 512, "n_experts": 16, "n_used": 4, "n_expert_ff": 256, "n_vocab": 16_384},
    "lfm2-350m": {"n_vocab": 16_384},
}


class Override(ctypes.Structure):
    """llama_model_tensor_buft_override@0.3.36."""

    _fields_ = [("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p)]


def serve(port: int) -> None:
    """Be a pseudo-GPU: the processor, behind RPC."""
    by_type, start = ggml_function("ggml_backend_dev_by_type"), rpc_function("ggml_backend_rpc_start_server")
    by_type.restype, by_type.argtypes = ctypes.c_void_p, [ctypes.c_int]
    start.restype = None
    start.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p]
    devices = (ctypes.c_void_p * 1)(by_type(0))
    start(f"127.0.0.1:{port}".encode(), None, 1, 1, devices)


def rpc_function(name: str) -> ctypes._CFuncPtr:
    folder = Path(lib.__file__).parent / "lib"
    library = ctypes.CDLL(str(next(folder.glob("libggml-rpc.so*"), folder / "libggml-rpc.so")))
    function: ctypes._CFuncPtr = getattr(library, name)
    return function


def connect(port: int) -> int:
    """Return the device behind a port, once its server answers."""
    for _ in range(200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.05)
    add, get = rpc_function("ggml_backend_rpc_add_server"), ggml_function("ggml_backend_reg_dev_get")
    add.restype, add.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t]
    device: int = get(add(f"127.0.0.1:{port}".encode()), 0)
    return device


def drawn(chance: random.Random, model: PlannedModel, names: Sequence[str]) -> tuple[Setting, Machine]:
    """Draw a context and memory limits around what the model takes."""
    n_ctx = chance.choice((512, 2048, 4096))
    kv_type = chance.choice(("f16", "q8_0"))
    setting = Setting(n_ctx=n_ctx, n_cells=n_ctx, kv_types=parse_kv_types(kv_type), n_sequences=2, n_ubatch=256)
    total = model.profile(setting).total_bytes
    gpus = [
        Device(
            name=name,
            kind=DeviceKind.GPU,
            total_bytes=total,
            free_bytes=int(total * chance.uniform(0.1, 0.9)) + 256 * MIB,
            bytes_per_s=chance.choice((400e9, 900e9)),
        )
        for name in names
    ]
    host = Device(name="CPU", kind=DeviceKind.CPU, total_bytes=1 << 40, free_bytes=1 << 40, bytes_per_s=50e9)
    return setting, Machine(host, tuple(gpus))


def load(path: Path, wanted: LoadParameters, setting: Setting, devices: dict[str, int], log: EngineLog) -> None:
    """Load as planned, make the context, and free both."""
    cpu_type = ggml_function("ggml_backend_cpu_buffer_type")
    cpu_type.restype = ctypes.c_void_p
    pattern = wanted.host_pattern.encode()
    overrides = (Override * 2)(Override(pattern, cpu_type()), Override(None, None))
    chosen = (ctypes.c_void_p * (N_GPUS + 1))(*(devices[name] for name in wanted.devices), None)
    split = (ctypes.c_float * lib.llama_max_devices())(*wanted.tensor_split)
    params = lib.llama_model_default_params()
    params.n_gpu_layers, params.use_extra_bufts = wanted.n_gpu_layers, False
    params.load_mode = lib.LLAMA_LOAD_MODE_NONE  # of a mapping the whole span would be logged
    params.devices = ctypes.addressof(chosen)
    params.tensor_split = split
    if pattern:
        params.tensor_buft_overrides = ctypes.addressof(overrides)
    model = lib.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        sys.exit(log.text)
    context_params = lib.llama_context_default_params()
    context_params.n_ctx, context_params.n_seq_max = setting.n_cells, setting.n_sequences
    context_params.n_batch = context_params.n_ubatch = setting.n_ubatch
    context_params.type_k, context_params.type_v = setting.kv_types.ids
    context_params.kv_unified, context_params.flash_attn_type = True, lib.LLAMA_FLASH_ATTN_TYPE_ENABLED
    context = lib.llama_init_from_model(model, context_params)
    if not context:
        sys.exit(log.text)
    lib.llama_free(context)
    lib.llama_model_free(model)


def faults(shares: Sequence[Share], logged: dict[tuple[str, str], float]) -> list[str]:
    """Return where a device got other weights and cache than planned, or more in all than it had."""
    found = []
    for share in shares:
        got = {kind: logged.get((share.device.name, kind), 0.0) for kind in ("model", "KV", "RS", "compute")}
        kept, planned = sum(got.values()) - got["compute"], (share.weight_bytes + share.cache_bytes) / MIB
        if abs(planned - kept) > TOLERANCE * planned + PRINTED_MIB:
            found.append(f"{share.device.name}: planned {planned:.1f} MiB, got {kept:.1f}")
        if share.n_layers and sum(got.values()) > share.device.free_bytes / MIB:
            found.append(f"{share.device.name}: got more than the {share.device.free_bytes / MIB:.1f} MiB it had")
    return found


def compute_errors(shares: Sequence[Share], logged: dict[tuple[str, str], float]) -> Iterator[float]:
    """Yield by what share of all it holds each GPU's compute buffer is off."""
    for share in shares:
        if share.n_layers and not share.device.shares_host:
            error_mib = logged.get((share.device.name, "compute"), 0.0) - share.compute_bytes / MIB
            yield abs(error_mib) / (share.n_bytes / MIB)


def run_all(n_runs: int, seed: int, devices: dict[str, int]) -> int:
    chance, log, n_faulty = random.Random(seed), EngineLog(), 0
    with tempfile.TemporaryDirectory() as folder:
        for index in range(n_runs):
            name = chance.choice(list(REDUCED))
            header, path = header_of(name), Path(folder) / f"{name}.gguf"
            if not path.exists():
                write_outline(name, path)
            model = PlannedModel(header, header.tensors)
            setting, machine = drawn(chance, model, list(devices))
            profile = model.profile(setting)
            placement = place(profile, machine, expected_rates(machine))
            assert placement is not None
            log.text = ""
            load(path, load_parameters(profile, machine, placement), setting, devices, log)
            shares, logged = allocate(profile, machine, placement), log.buffers()
            wrong, compute_error = faults(shares, logged), max(compute_errors(shares, logged), default=0.0)
            n_faulty += bool(wrong)
            outcome = "; ".join(wrong) or "as planned"
            place_text = f"{placement.gpu_layers} split {placement.n_split}"
            print(f"{index:3} {name:14} {place_text}: {outcome}, compute off by {compute_error:.1%}", flush=True)
    return n_faulty


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--port", type=int, default=50_900, help="the first of two")
    parser.add_argument("--serve", type=int, metavar="PORT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    lib.llama_backend_init()
    if options.serve:
        serve(options.serve)
        return
    for name, changes in REDUCED.items():
        model_outlines.OUTLINES[name] = replace(OUTLINES[name], **changes)
    ports = [options.port + index for index in range(N_GPUS)]
    servers = [
        subprocess.Popen([sys.executable, __file__, "--serve", str(port)], stdout=subprocess.DEVNULL) for port in ports
    ]
    try:
        n_faulty = run_all(options.runs, options.seed, {f"RPC0[127.0.0.1:{port}]": connect(port) for port in ports})
    finally:
        for server in servers:
            server.kill()
    print(f"{n_faulty} of {options.runs} otherwise than planned")
    sys.exit(n_faulty > 0)


if __name__ == "__main__":
    main()
