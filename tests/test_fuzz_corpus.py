"""The corpus of the fuzzers against every reader of foreign bytes, and the fuzzers themselves, without atheris."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from quantizer.system.errors import UserError
from tests.battery.fuzz.__main__ import fuzzed
from tests.battery.fuzz.corpus import kept_inputs, read_corpus, smallest_cover
from tests.battery.fuzz.mutations import mutated, stretched
from tests.battery.fuzz.target import Form, Reader, Target, attempt
from tests.battery.fuzz.targets import TARGETS

_MAX_CORPUS_BYTES = 120_000


@pytest.mark.parametrize("name", TARGETS)
def test_each_reader_takes_or_refuses_its_whole_corpus(name: str, tmp_path: Path) -> None:
    target = TARGETS[name]
    read = target.opened(tmp_path)
    failures = {data: attempt(target, read, data) for data in kept_inputs(target)}
    assert not {data: failure for data, failure in failures.items() if failure is not None}


def test_each_target_has_a_corpus_and_all_of_them_are_small() -> None:
    folder = Path(__file__).parent / "battery" / "fuzz" / "corpus"
    assert {path.stem for path in folder.iterdir()} == set(TARGETS)
    assert sum(path.stat().st_size for path in folder.iterdir()) < _MAX_CORPUS_BYTES
    assert all(read_corpus(target) for target in TARGETS.values())


def _target(reader: Reader, **fields: object) -> Target:
    return Target("reader", lambda _folder: reader, ("tests",), lambda: [b'{"a": [1, "x"]}'], **fields)  # type: ignore[arg-type]


def _raised(error: BaseException) -> Reader:
    def read(_data: bytes) -> None:
        raise error

    return read


class _Long(UserError):
    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(cause, remedy)
        self.cause = "x" * 20_000


@pytest.mark.parametrize(
    ("error", "key"),
    [
        (UserError("It is broken.", "Mend it."), None),
        (UserError("It is broken."), "an error without cause or remedy"),
        (UserError("\ud800.", "Mend it."), "an error that is not UTF-8"),
        (_Long("", "Mend it."), "an error that is too long"),
        (KeyError("a"), "KeyError"),
        (RecursionError(), "RecursionError"),
        (MemoryError(), "MemoryError"),
        (AssertionError("unsound"), "AssertionError"),
    ],
)
def test_an_input_fails_by_any_error_that_tells_nobody_what_to_do(error: Exception, key: str | None) -> None:
    read = _raised(error)
    failure = attempt(_target(read), read, b"")
    assert (failure is None) == (key is None)
    assert failure is None or (key is not None and failure.key.startswith(f"{key} in tests/test_fuzz_corpus.py"))


def test_an_input_fails_that_takes_many_times_its_limit() -> None:
    def read(_data: bytes) -> None:
        while True:
            pass

    failure = attempt(_target(read, base_s=0.001, s_per_kib=0.0), read, b"")
    assert failure is not None
    assert failure.key == "takes too long in tests/test_fuzz_corpus.py, read"


@pytest.mark.parametrize("form", Form)
def test_mutations_are_repeated_by_their_seed_and_keep_the_size(form: Form) -> None:
    seeds = {
        Form.WEIGHTS: b'\x08\0\0\0\0\0\0\0{"a": 1}\0\0',
        Form.EVENTS: b'data: {"a": [1]}\n\ndata: {"b": {}}\n\n',
    }
    data = seeds.get(form, b'{"a": [1, {"b": "x"}]}')
    target = _target(bytes, form=form, words=("word",), max_bytes=200)

    def made(seed: int) -> list[bytes]:
        chance = random.Random(seed)
        return [mutated(target, data, data, chance) for _ in range(300)]

    assert made(1) == made(1) != made(2)
    assert all(len(each) <= 200 for each in made(1))
    assert len(set(made(1))) > 150


@pytest.mark.parametrize("form", [Form.JSON, Form.TEXT, Form.EVENTS, Form.BYTES, Form.WEIGHTS])
def test_an_input_is_stretched_to_the_size_that_shows_how_time_grows(form: Form) -> None:
    data = b'\x08\0\0\0\0\0\0\0{"a": 1}' if form is Form.WEIGHTS else b'{"a": [1, {"b": "x"}]}'
    chance = random.Random(1)
    made = [stretched(_target(bytes, form=form), data, 10_000, chance) for _ in range(50)]
    assert all(1_000 < len(each) <= 40_000 for each in made)


def test_the_cover_keeps_short_inputs_that_reach_all() -> None:
    from app.common.json_limits import too_long_list  # noqa: F401 - its lines are counted

    def opened(_folder: Path) -> Reader:
        from app.batch.requests import read_requests

        return lambda data: read_requests("b", data.splitlines())

    target = Target("batch", opened, ("app.batch",), list)
    inputs = [b"{}", b"[]", b"{}" + b" " * 900, b"[]" * 400]
    kept, arcs, reached = smallest_cover(target, opened(Path()), inputs, 10_000)
    assert set(kept) <= {b"{}", b"[]", b"[]" * 400}
    assert arcs == reached != set()
    assert smallest_cover(target, opened(Path()), inputs, 0)[0] == []


@pytest.mark.slow
def test_a_run_without_atheris_fuzzes_in_a_process_of_its_own_and_counts_what_fails() -> None:
    outcome = fuzzed(TARGETS["batch"], 40, 1, is_guided=False)
    assert not outcome.failures
