from __future__ import annotations

from pathlib import Path

import pytest

from offload.devices.numa import AUTO, NumaStrategy, choose_numa, numa_nodes

TWO = (frozenset({0, 1, 4, 5}), frozenset({2, 3, 6, 7}))
ALL = range(8)


def system(folder: Path, *lists: str) -> Path:
    for number, text in enumerate(lists):
        (folder / f"node{number}").mkdir(parents=True)
        (folder / f"node{number}" / "cpulist").write_text(f"{text}\n")
    return folder


def test_nodes_are_those_of_the_system_up_to_the_first_gap(tmp_path: Path) -> None:
    folder = system(tmp_path, "0-1,4-5", "2-3,6-7", "")
    assert numa_nodes(folder) == (*TWO, frozenset())
    (folder / "node1" / "cpulist").unlink()
    assert numa_nodes(folder) == TWO[:1]
    assert numa_nodes(tmp_path / "nowhere") == ()


@pytest.mark.parametrize("nodes", [(), TWO[:1]])
@pytest.mark.parametrize("wanted", [AUTO, *NumaStrategy])
def test_with_one_node_nothing_is_chosen(nodes: tuple[frozenset[int], ...], wanted: str) -> None:
    assert choose_numa(wanted, nodes, ALL, computes=True) is None


@pytest.mark.parametrize(
    ("nodes", "usable", "computes", "expected"),
    [
        (TWO, ALL, True, NumaStrategy.DISTRIBUTE),
        (TWO, ALL, False, NumaStrategy.OFF),
        (TWO, (0, 1), True, NumaStrategy.OFF),
        (TWO, (0, 1, 2, 3), True, NumaStrategy.NUMACTL),
        ((*TWO, frozenset()), ALL, True, NumaStrategy.OFF),
    ],
)
def test_threads_are_distributed_where_each_node_has_processors_for_them(
    nodes: tuple[frozenset[int], ...], usable: tuple[int, ...], computes: bool, expected: NumaStrategy
) -> None:
    choice = choose_numa(AUTO, nodes, usable, computes=computes)
    assert choice is not None
    assert choice.strategy is expected
    assert str(len(nodes)) in choice.reason or not computes


@pytest.mark.parametrize("wanted", NumaStrategy)
def test_a_chosen_strategy_is_kept(wanted: NumaStrategy) -> None:
    choice = choose_numa(wanted, TWO, (0,), computes=False)
    assert choice is not None
    assert choice.strategy is wanted
