"""Ways out of a plan that is slow or impossible, each assessed like the plan itself, the fastest first. Pure.

Owns the list of ways: a smaller file, a smaller cache, a shorter context, a larger GPU. Knows nothing of screens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from offload.assessment import Assessment, Verdict, assess
from offload.kv_cache import KvTypes, can_have
from offload.machine import Device, DeviceKind, Machine
from offload.model import PlannedModel
from offload.profile import Setting
from offload.speed import Rates, expected_rates
from offload.wording import gigabytes_per_s, memory, tokens
from quantizer.file_types import FILE_TYPES

__all__ = ["Remedy", "remedies_of"]

_FILE_TYPES = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "IQ4_XS", "Q3_K_M", "Q2_K")  # from the best to the smallest
_SMALLER_FILE = 0.95  # of the bytes: less is no way out
_FASTER = 1.05
_SMALLER_KV = "q8_0"
_LEAST_N_CTX = 2048
_GPU_GIB = (6, 8, 12, 16, 24, 32, 48, 80)
_COMMON_GPU_BYTES_PER_S = 360e9  # an RTX 3060, where there is no GPU to take as a measure
_GPU_SHARE = 0.97  # of a card's memory that is free on it


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to do, what the answer then comes at (None where nobody can tell), and what it costs."""

    what: str
    decode_tps: float | None
    cost: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class _Case:
    """What is to be helped."""

    model: PlannedModel
    setting: Setting
    machine: Machine
    rates: Rates
    found: Assessment


def remedies_of(
    model: PlannedModel, setting: Setting, machine: Machine, rates: Rates, found: Assessment
) -> tuple[Remedy, ...]:
    """Return what helps `found`, the assessment of `model` under `setting`; nothing where all fits."""
    if found.verdict is Verdict.FITS:
        return ()
    case = _Case(model, setting, machine, rates, found)
    ways = [remedy for way in _WAYS for remedy in way(case)]
    return tuple(sorted(ways, key=lambda remedy: -(remedy.decode_tps or 0.0)))


def _smaller_file(case: _Case) -> Iterator[Remedy]:
    """The best type that fits whole, or else the fastest there is."""
    helping: list[Remedy] = []
    for name in _FILE_TYPES:
        smaller = case.model.quantized(FILE_TYPES[name])
        if smaller.n_bytes > _SMALLER_FILE * case.model.n_bytes:
            continue
        found = assess(smaller.profile(case.setting), case.machine, case.rates)
        loss = FILE_TYPES[name].perplexity_loss
        cost = f"+{loss:.2f} on a perplexity of 6.23" if loss is not None else FILE_TYPES[name].description
        if _helps(found, case.found):
            helping.append(_remedy(f"quantize to {name} ({memory(smaller.n_bytes)})", found, cost))
        if helping and found.verdict in (Verdict.FITS, Verdict.TIGHT):
            break
    yield from helping[-1:]


def _smaller_cache(case: _Case) -> Iterator[Remedy]:
    kv_types = KvTypes(_SMALLER_KV, _SMALLER_KV)
    if case.setting.kv_types == KvTypes() and can_have(kv_types, case.model.kv_shape):
        profile = case.model.profile(replace(case.setting, kv_types=kv_types))
        found = assess(profile, case.machine, case.rates)
        saved = case.found.profile.cache_bytes - profile.cache_bytes
        if _helps(found, case.found):
            yield _remedy(f"--kv-type {_SMALLER_KV} ({memory(saved)} less cache)", found, "almost none")


def _shorter_context(case: _Case) -> Iterator[Remedy]:
    """The longest that helps, by halves."""
    n_ctx = case.setting.n_ctx // 2
    while n_ctx >= _LEAST_N_CTX:
        setting = replace(case.setting, n_ctx=n_ctx, n_cells=n_ctx)
        found = assess(case.model.profile(setting), case.machine, case.rates)
        if _helps(found, case.found):
            yield _remedy(f"--ctx {n_ctx}", found, f"context of {tokens(n_ctx)} tokens")
            return
        n_ctx //= 2


def _larger_gpu(case: _Case) -> Iterator[Remedy]:
    """The smallest card of usual size that holds everything, as fast as the fastest here."""
    known = [gpu.bytes_per_s for gpu in case.machine.gpus if gpu.bytes_per_s]
    bytes_per_s = max(known, default=_COMMON_GPU_BYTES_PER_S)
    if any(gpu.kind is DeviceKind.INTEGRATED for gpu in case.machine.gpus):
        return
    for size in _GPU_GIB:
        card = Device(
            name="new GPU",
            kind=DeviceKind.GPU,
            total_bytes=size << 30,
            free_bytes=int(_GPU_SHARE * (size << 30)),
            bytes_per_s=bytes_per_s,
        )
        machine = Machine(case.machine.host, (card,))
        found = assess(case.found.profile, machine, expected_rates(machine))
        if found.verdict in (Verdict.FITS, Verdict.TIGHT):
            yield _remedy(
                f"a GPU of {size} GiB", found, f"the card; said for one of {gigabytes_per_s(bytes_per_s)} GB/s"
            )
            return


_WAYS: tuple[Callable[[_Case], Iterator[Remedy]], ...] = (_smaller_file, _smaller_cache, _shorter_context, _larger_gpu)


def _helps(found: Assessment, before: Assessment) -> bool:
    """Whether a way leads anywhere: it runs at all, or more of it fits, or it is faster."""
    if found.verdict.rank < before.verdict.rank:
        return True
    faster = found.decode_tps is not None and before.decode_tps is not None
    return faster and (found.decode_tps or 0.0) >= _FASTER * (before.decode_tps or 0.0)


def _remedy(what: str, found: Assessment, cost: str) -> Remedy:
    return Remedy(what, found.decode_tps, cost, found.verdict)
