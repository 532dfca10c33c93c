from __future__ import annotations

from offload.devices.cpu import cpu_model, cpu_name, has_avx2


def test_the_model_is_part_of_the_full_name() -> None:
    assert cpu_model()
    assert cpu_name().startswith(cpu_model())


def test_instruction_sets_are_read_where_the_system_lists_them() -> None:
    assert has_avx2() in (None, " avx2 " in f"{cpu_name()} ")
