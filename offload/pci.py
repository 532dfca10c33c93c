"""The GPUs on the PCI bus of a Linux machine, whether or not the engine can use them, and how wide their links are.

Owns the reading of sysfs. Knows nothing of drivers. Other systems have nothing to read here.
Source: the kernel's Documentation/ABI/testing/sysfs-bus-pci (class, vendor, current_link_speed, current_link_width).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PciGpu", "pci_gpus"]

_DEVICES = Path("/sys/bus/pci/devices")
_DISPLAY_CLASS = 0x03
_VENDORS = {0x10DE: "NVIDIA", 0x1002: "AMD", 0x8086: "Intel"}
_SPEED = re.compile(r"(\d+(?:\.\d+)?) GT/s")
_FAST_LINK = 8.0  # GT/s: from here on 128 of 130 bits are data, below 8 of 10


@dataclass(frozen=True, slots=True)
class PciGpu:
    """A display device: its address such as 0000:01:00.0, its maker, and what its link carries, None if unknown."""

    address: str
    vendor: str
    link_bytes_per_s: float | None


def pci_gpus(devices: Path = _DEVICES) -> tuple[PciGpu, ...]:
    """Return the display devices of known makers below `devices`, in order of address."""
    folders = sorted(devices.iterdir()) if devices.is_dir() else []
    return tuple(gpu for folder in folders if (gpu := _gpu(folder)) is not None)


def _gpu(folder: Path) -> PciGpu | None:
    vendor = _VENDORS.get(_number(folder / "vendor"))
    if vendor is None or _number(folder / "class") >> 16 != _DISPLAY_CLASS:
        return None
    return PciGpu(folder.name, vendor, _link_bytes_per_s(folder))


def _link_bytes_per_s(folder: Path) -> float | None:
    speed, width = _SPEED.match(_text(folder / "current_link_speed")), _text(folder / "current_link_width")
    if speed is None or not width.isdigit() or not int(width):
        return None
    transfers = float(speed[1])
    share = 128 / 130 if transfers >= _FAST_LINK else 0.8
    return transfers * 1e9 * share * int(width) / 8


def _number(path: Path) -> int:
    text = _text(path)
    return int(text, 16) if re.fullmatch(r"0x[0-9a-fA-F]+", text) else 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
