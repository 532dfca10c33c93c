from __future__ import annotations

from pathlib import Path

import pytest

from offload.devices.gpus import PciGpu, pci_gpus


def device(devices: Path, address: str, **files: str) -> None:
    """A device with these files, class and vendor among them; `_` of an argument's name ends it."""
    folder = devices / address
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name.rstrip("_")).write_text(f"{text}\n", encoding="ascii")


def test_a_gpu_has_a_maker_and_the_speed_of_its_link(tmp_path: Path) -> None:
    device(
        tmp_path,
        "0000:01:00.0",
        class_="0x030000",
        vendor="0x10de",
        current_link_speed="16.0 GT/s PCIe",
        current_link_width="16",
    )
    (gpu,) = pci_gpus(tmp_path)
    assert (gpu.address, gpu.vendor) == ("0000:01:00.0", "NVIDIA")
    assert gpu.link_bytes_per_s == pytest.approx(31.5e9, rel=0.01)  # PCIe 4.0 x16


def test_an_old_link_carries_eight_bits_of_ten(tmp_path: Path) -> None:
    link = {"current_link_speed": "5.0 GT/s PCIe", "current_link_width": "4"}
    device(tmp_path, "0000:02:00.0", class_="0x030200", vendor="0x1002", **link)
    (gpu,) = pci_gpus(tmp_path)
    assert gpu.link_bytes_per_s == pytest.approx(2e9)


@pytest.mark.parametrize(
    "link", [{}, {"current_link_speed": "Unknown", "current_link_width": "63"}, {"current_link_width": "0"}]
)
def test_a_link_that_cannot_be_read_is_unknown(tmp_path: Path, link: dict[str, str]) -> None:
    device(tmp_path, "0000:00:02.0", class_="0x030000", vendor="0x8086", **link)
    assert pci_gpus(tmp_path) == (PciGpu("0000:00:02.0", "Intel", None),)


def test_what_shows_no_picture_is_no_gpu(tmp_path: Path) -> None:
    device(tmp_path, "0000:03:00.0", class_="0x020000", vendor="0x8086")
    device(tmp_path, "0000:04:00.0", class_="0x030000", vendor="0x1234")
    device(tmp_path, "0000:05:00.0")
    assert pci_gpus(tmp_path) == ()


def test_a_machine_without_sysfs_has_nothing_to_tell(tmp_path: Path) -> None:
    assert pci_gpus(tmp_path / "missing") == ()
