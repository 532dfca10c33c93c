"""Memory bandwidth of GPUs by name, as their makers publish it.

Owns the table. Independent of which GPUs a machine has. Names are searched for within the driver's name of a device,
the more specific ones first. Source: the makers' data sheets (NVIDIA, AMD, Intel product pages; Apple's newsroom), in
GB/s.
"""

from __future__ import annotations

import re

_GIGA = 1e9

_GB_PER_S: dict[str, float] = {
    "RTX 5090": 1792,
    "RTX 5080": 960,
    "RTX 5070 Ti": 896,
    "RTX 5070": 672,
    "RTX 5060 Ti": 448,
    "RTX 5060": 448,
    "RTX 4090": 1008,
    "RTX 4080 SUPER": 736,
    "RTX 4080": 717,
    "RTX 4070 Ti SUPER": 672,
    "RTX 4070": 504,
    "RTX 4060 Ti": 288,
    "RTX 4060": 272,
    "RTX 3090 Ti": 1008,
    "RTX 3090": 936,
    "RTX 3080 Ti": 912,
    "RTX 3080": 760,
    "RTX 3070 Ti": 608,
    "RTX 3070": 448,
    "RTX 3060 Ti": 448,
    "RTX 3060": 360,
    "RTX 3050": 224,
    "RTX 2080 Ti": 616,
    "RTX 2080": 448,
    "RTX 2070": 448,
    "RTX 2060": 336,
    "GTX 1080 Ti": 484,
    "GTX 1080": 320,
    "GTX 1070": 256,
    "GTX 1060": 192,
    "RTX 6000 Ada": 960,
    "RTX A6000": 768,
    "H200": 4800,
    "H100 PCIe": 2000,
    "H100": 3350,
    "A100-SXM4-80GB": 2039,
    "A100": 1555,
    "L40S": 864,
    "L4": 300,
    "A10": 600,
    "Tesla T4": 320,
    "Tesla P40": 347,
    "Tesla V100": 900,
    "RX 9070 XT": 645,
    "RX 9070": 645,
    "RX 7900 XTX": 960,
    "RX 7900 XT": 800,
    "RX 7900 GRE": 576,
    "RX 7800 XT": 624,
    "RX 7700 XT": 432,
    "RX 7600": 288,
    "RX 6900 XT": 512,
    "RX 6800": 512,
    "RX 6700 XT": 384,
    "RX 6600": 224,
    "MI300X": 5300,
    "MI210": 1638,
    "Radeon 8060S": 256,
    "Arc A770": 560,
    "Arc A750": 512,
    "Arc B580": 456,
    "Arc B570": 380,
    "Apple M1 Ultra": 800,
    "Apple M1 Max": 400,
    "Apple M1 Pro": 200,
    "Apple M1": 68,
    "Apple M2 Ultra": 800,
    "Apple M2 Max": 400,
    "Apple M2 Pro": 200,
    "Apple M2": 100,
    "Apple M3 Ultra": 819,
    "Apple M3 Max": 400,
    "Apple M3 Pro": 150,
    "Apple M3": 100,
    "Apple M4 Max": 546,
    "Apple M4 Pro": 273,
    "Apple M4": 120,
}
_MOBILE = re.compile(r"laptop|mobile|max-q", re.IGNORECASE)  # slower memory under the same name


def known_bandwidth(description: str) -> float | None:
    """Return the bytes per second that the GPU of this description reads, None for one that is not in the table."""
    if _MOBILE.search(description):
        return None
    found = [name for name in _GB_PER_S if re.search(rf"\b{re.escape(name)}\b", description, re.IGNORECASE)]
    return _GB_PER_S[max(found, key=len)] * _GIGA if found else None
