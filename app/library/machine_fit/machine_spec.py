"""Machines specified as text: `--vram GPU0=8GiB@900GB/s --ram 16GiB@60GB/s`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.settings.parsing import parse_byte_size
from offload.devices.gpu_table import known_bandwidth
from offload.devices.machine import HOST_NAME, Device, DeviceKind, Machine
from quantizer.errors import UsageError

__all__ = ["parse_machine"]

_HOW = "Write it like --vram GPU0=8GiB@900GB/s, or --vram 'RTX 3060=12GiB'."
_PER_SECOND = "/s"


def parse_machine(here: Callable[[], Machine], vram: Sequence[str], ram: str | None) -> Machine:
    """Return a machine with the given GPUs and memory, all of it free; the rest comes from `here`.

    `here` is called only if something is missing, because it takes a second. Memory without a speed gets this
    machine's, a GPU without one that of its name. Raises UsageError.
    """
    gpus = tuple(_gpu(text) for text in vram)
    names = [gpu.name for gpu in gpus]
    if len(set(names)) != len(names):
        raise UsageError("Two GPUs have the same name.", _HOW)
    n_bytes, bytes_per_s = _memory(ram) if ram is not None else (0, None)
    if gpus and bytes_per_s:
        return Machine(_host(n_bytes, bytes_per_s), gpus)
    known = here()
    host = _host(n_bytes, bytes_per_s or known.host.bytes_per_s) if ram is not None else known.host
    return Machine(host, gpus or known.gpus)


def _host(n_bytes: int, bytes_per_s: float | None) -> Device:
    return Device(name=HOST_NAME, kind=DeviceKind.CPU, total_bytes=n_bytes, free_bytes=n_bytes, bytes_per_s=bytes_per_s)


def _gpu(text: str) -> Device:
    name, found, memory = text.partition("=")
    if not name.strip() or not found:
        raise UsageError(f"{text!r} is not a GPU.", _HOW)
    n_bytes, bytes_per_s = _memory(memory)
    return Device(
        name=name.strip(),
        kind=DeviceKind.GPU,
        total_bytes=n_bytes,
        free_bytes=n_bytes,
        bytes_per_s=bytes_per_s or known_bandwidth(name),
    )


def _memory(text: str) -> tuple[int, float | None]:
    """Parse SIZE or SIZE@SPEED/s."""
    size, found, speed = text.partition("@")
    if not found:
        return parse_byte_size(size), None
    if not speed.endswith(_PER_SECOND):
        raise UsageError(f"{speed!r} is not a speed.", _HOW)
    return parse_byte_size(size), float(parse_byte_size(speed.removesuffix(_PER_SECOND)))
