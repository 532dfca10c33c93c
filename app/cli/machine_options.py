"""Machines as people write them on the command line: `--vram GPU0=8GiB@900GB/s --ram 16GiB@60GB/s`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from app.cli.byte_sizes import parse_byte_size
from offload.gpu_table import known_bandwidth
from offload.machine import Device, DeviceKind, Machine
from quantizer.errors import UsageError

__all__ = ["given_machine"]

_HOW = "Write it like --vram GPU0=8GiB@900GB/s, or --vram 'RTX 3060=12GiB'."
_PER_SECOND = "/s"


def given_machine(here: Machine, vram: Sequence[str], ram: str | None) -> Machine:
    """Return `here` with the GPUs and memory that were given instead of its own; all their memory counts as free.

    Memory without a speed is read as fast as here, a GPU without one as fast as its name tells. Raises UsageError.
    """
    host = here.host if ram is None else _host(here.host, ram)
    gpus = tuple(_gpu(text) for text in vram) if vram else here.gpus
    names = [gpu.name for gpu in gpus]
    if len(set(names)) != len(names):
        raise UsageError("Two GPUs have the same name.", _HOW)
    return Machine(host, gpus)


def _host(here: Device, text: str) -> Device:
    n_bytes, bytes_per_s = _memory(text)
    return replace(here, total_bytes=n_bytes, free_bytes=n_bytes, bytes_per_s=bytes_per_s or here.bytes_per_s)


def _gpu(text: str) -> Device:
    name, found, memory = text.partition("=")
    if not name.strip() or not found:
        raise UsageError(f"{text!r} is no GPU.", _HOW)
    n_bytes, bytes_per_s = _memory(memory)
    return Device(
        name=name.strip(),
        kind=DeviceKind.GPU,
        total_bytes=n_bytes,
        free_bytes=n_bytes,
        bytes_per_s=bytes_per_s or known_bandwidth(name),
    )


def _memory(text: str) -> tuple[int, float | None]:
    """Read SIZE or SIZE@SPEED/s."""
    size, found, speed = text.partition("@")
    if not found:
        return parse_byte_size(size), None
    if not speed.endswith(_PER_SECOND):
        raise UsageError(f"{speed!r} is no speed.", _HOW)
    return parse_byte_size(size), float(parse_byte_size(speed.removesuffix(_PER_SECOND)))
