"""The GPUs of a machine, from the PCI bus of Linux, NVIDIA's driver and the list of llama.cpp's backends; and the
memory bandwidth of GPUs by name.

NVIDIA's library (nvidia-ml-py) and driver may be missing, and old drivers and virtual GPUs report less: missing figures
are None. Source: the kernel's Documentation/ABI/testing/sysfs-bus-pci (class, vendor, current_link_speed,
current_link_width), the reference of NVML (docs.nvidia.com/deploy/nvml-api), and `llama_prepare_model_devices` in
src/llama.cpp as vendored in llama-cpp-python 0.3.36; for bandwidths the makers' data sheets.
"""

from __future__ import annotations

import importlib
import platform
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from offload.devices.machine import DeviceSpeed

_Answer = TypeVar("_Answer")
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
    gpus = []
    for folder in sorted(devices.iterdir()) if devices.is_dir() else ():
        vendor = _VENDORS.get(_number(folder / "vendor"))
        if vendor is None or _number(folder / "class") >> 16 != _DISPLAY_CLASS:
            continue
        link_bytes_per_s = None
        speed, width = _SPEED.match(_text(folder / "current_link_speed")), _text(folder / "current_link_width")
        if speed is not None and width.isdigit() and int(width):
            transfers = float(speed[1])
            link_bytes_per_s = transfers * 1e9 * (128 / 130 if transfers >= _FAST_LINK else 0.8) * int(width) / 8
        gpus.append(PciGpu(folder.name, vendor, link_bytes_per_s))
    return tuple(gpus)


def _number(path: Path) -> int:
    text = _text(path)
    return int(text, 16) if re.fullmatch(r"0x[0-9a-fA-F]+", text) else 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


_TRANSFERS_PER_CLOCK = 2  # memory clocks are reported for one edge
_GENERATION_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}  # of one PCIe lane
_ADDRESS_LENGTH = len("0000:01:00.0")  # NVML writes eight digits of the domain


@dataclass(frozen=True, slots=True)
class NvidiaGpu:
    """A GPU by its PCI address, such as 0000:01:00.0; figures that the driver does not report are None."""

    address: str
    bytes_per_s: float | None
    link_bytes_per_s: float | None


def _nvml() -> Any:
    return importlib.import_module("pynvml")


def nvidia_gpus(library: Callable[[], Any] = _nvml) -> tuple[NvidiaGpu, ...]:
    """Return the GPUs that the driver reports; none without the driver or its library."""
    return _ask_driver(library, lambda nvml: tuple(_gpus(nvml)), ())


def driver_versions(library: Callable[[], Any] = _nvml) -> str:
    # most drivers belong to the system
    nvidia = _ask_driver(library, lambda nvml: f", NVIDIA {nvml.nvmlSystemGetDriverVersion()}", "")
    return f"{platform.system()} {platform.release()}{nvidia}"


def _ask_driver(library: Callable[[], Any], question: Callable[[Any], _Answer], otherwise: _Answer) -> _Answer:
    try:
        nvml = library()
    except ImportError:
        return otherwise
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return otherwise
    try:
        return question(nvml)
    except nvml.NVMLError:
        return otherwise
    finally:
        nvml.nvmlShutdown()


def _gpus(nvml: Any) -> Iterator[NvidiaGpu]:
    for index in range(nvml.nvmlDeviceGetCount()):
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        bus_id = nvml.nvmlDeviceGetPciInfo(gpu).busId
        address = bus_id.decode("ascii", "replace") if isinstance(bus_id, bytes) else str(bus_id)
        megahertz = _asked(nvml, nvml.nvmlDeviceGetMaxClockInfo, gpu, nvml.NVML_CLOCK_MEM)
        bits = _asked(nvml, nvml.nvmlDeviceGetMemoryBusWidth, gpu)
        # of the link its best: an idle GPU lets it fall back to the slowest
        lane_bytes_per_s = _GENERATION_BYTES_PER_S.get(_asked(nvml, nvml.nvmlDeviceGetMaxPcieLinkGeneration, gpu))
        n_lanes = _asked(nvml, nvml.nvmlDeviceGetMaxPcieLinkWidth, gpu)
        yield NvidiaGpu(
            address[-_ADDRESS_LENGTH:].lower(),
            megahertz * 1e6 * _TRANSFERS_PER_CLOCK * bits / 8 if megahertz and bits else None,
            lane_bytes_per_s * n_lanes if lane_bytes_per_s and n_lanes else None,
        )


def _asked(nvml: Any, question: Callable[..., int], *arguments: Any) -> int:
    try:
        return question(*arguments)
    except nvml.NVMLError:
        return 0


_NUMBER = re.compile(r"\d+$")
_APPLE = re.compile(r"Apple M\d")


@dataclass(frozen=True, slots=True)
class ListedGpu:
    """A GPU as ggml lists it: bytes of memory, 0 if unknown, and its `address` on the PCI bus, "" without one. The link
    to a GPU of another machine is measured; those of this machine have None."""

    name: str
    description: str
    is_integrated: bool
    free_bytes: int
    total_bytes: int
    address: str
    link_bytes_per_s: float | None = None
    link_latency_s: float | None = None
    speed: DeviceSpeed | None = None

    @property
    def key(self) -> str:  # its measurements are kept by it
        return f"{self.name} {self.description} {self.total_bytes}"

    @property
    def has_unified_memory(self) -> bool:
        # Metal does not report it, but all of Apple's use the processor's memory
        return self.is_integrated or _APPLE.match(self.description) is not None


def distinct_gpus(listed: Iterable[ListedGpu]) -> list[ListedGpu]:
    """Return one GPU per PCI address, and integrated GPUs of one backend only.
    ggml lists the backend made for a maker's GPUs before the general ones. An integrated GPU often has no address."""
    addresses: set[str] = set()
    unified_backend: str | None = None
    distinct: list[ListedGpu] = []
    for gpu in listed:
        address, backend = gpu.address.lower(), _NUMBER.sub("", gpu.name)
        if address and address in addresses:
            continue
        if gpu.has_unified_memory:
            unified_backend = unified_backend or backend
            if backend != unified_backend:
                continue
        addresses.add(address)
        distinct.append(gpu)
    return distinct


# fmt: off
_GB_PER_S: dict[str, float] = {
    "RTX 5090": 1792, "RTX 5080": 960, "RTX 5070 Ti": 896, "RTX 5070": 672, "RTX 5060 Ti": 448, "RTX 5060": 448,
    "RTX 4090": 1008, "RTX 4080 SUPER": 736, "RTX 4080": 717, "RTX 4070 Ti SUPER": 672, "RTX 4070": 504,
    "RTX 4060 Ti": 288, "RTX 4060": 272,
    "RTX 3090 Ti": 1008, "RTX 3090": 936, "RTX 3080 Ti": 912, "RTX 3080": 760, "RTX 3070 Ti": 608, "RTX 3070": 448,
    "RTX 3060 Ti": 448, "RTX 3060": 360, "RTX 3050": 224,
    "RTX 2080 Ti": 616, "RTX 2080": 448, "RTX 2070": 448, "RTX 2060": 336,
    "GTX 1080 Ti": 484, "GTX 1080": 320, "GTX 1070": 256, "GTX 1060": 192,
    "RTX 6000 Ada": 960, "RTX A6000": 768, "H200": 4800, "H100 PCIe": 2000, "H100": 3350, "A100-SXM4-80GB": 2039,
    "A100": 1555, "L40S": 864, "L4": 300, "A10": 600, "Tesla T4": 320, "Tesla P40": 347, "Tesla V100": 900,
    "RX 9070 XT": 645, "RX 9070": 645, "RX 7900 XTX": 960, "RX 7900 XT": 800, "RX 7900 GRE": 576, "RX 7800 XT": 624,
    "RX 7700 XT": 432, "RX 7600": 288, "RX 6900 XT": 512, "RX 6800": 512, "RX 6700 XT": 384, "RX 6600": 224,
    "MI300X": 5300, "MI210": 1638, "Radeon 8060S": 256,
    "Arc A770": 560, "Arc A750": 512, "Arc B580": 456, "Arc B570": 380,
    "Apple M1 Ultra": 800, "Apple M1 Max": 400, "Apple M1 Pro": 200, "Apple M1": 68, "Apple M2 Ultra": 800,
    "Apple M2 Max": 400, "Apple M2 Pro": 200, "Apple M2": 100, "Apple M3 Ultra": 819, "Apple M3 Max": 400,
    "Apple M3 Pro": 150, "Apple M3": 100, "Apple M4 Max": 546, "Apple M4 Pro": 273, "Apple M4": 120,
}
# fmt: on
_MOBILE = re.compile(r"laptop|mobile|max-q", re.IGNORECASE)  # slower memory under the same name


def known_bandwidth(description: str) -> float | None:
    """Return the bytes per second that the GPU of this description reads, None for one that is not in the table."""
    if _MOBILE.search(description):
        return None
    found = [name for name in _GB_PER_S if re.search(rf"\b{re.escape(name)}\b", description, re.IGNORECASE)]
    return _GB_PER_S[max(found, key=len)] * 1e9 if found else None
