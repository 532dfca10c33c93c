from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.fake import FakeBackend
from app.engine.loop.core import Engine
from app.engine.loop.threads import PROMPT_TRIAL_TOKENS, QUIET_PROCESSORS, ThreadControl, decide, judge
from app.engine.request import Request
from app.engine.speculative.cost_model import StepCost
from offload.devices.host import CpuTimes, LoadMeter, ProcessorLoad

BARRIER_LOSS = 8.0  # how much longer a step takes whose threads outnumber the processors that they get


@dataclass
class Machine:
    """A machine with `n_processors`, `n_busy` other programs and one engine. A program of a lower priority gets
    `weight` of a thread's time. Time passes in steps only, and between them if a test says so."""

    n_processors: int
    n_busy: int = 0
    weight: float = 1.0
    step_s: float = 0.02  # of one thread alone
    now_s: float = 0.0
    idle_s: float = 0.0
    own_s: float = 0.0
    n_threads: int = 0
    loss: float = BARRIER_LOSS
    n_looks: int = 0
    tells_running: bool = True  # Linux does
    changes: list[int] = field(default_factory=list)

    def read(self) -> CpuTimes:
        self.n_looks += 1
        return CpuTimes(self.now_s * self.n_processors, self.idle_s, self.own_s)

    def running(self) -> int | None:
        return self.n_busy + 1 if self.tells_running else None

    def clock(self) -> float:
        return self.now_s

    def apply(self, n_threads: int) -> None:
        self.n_threads = n_threads
        self.changes.append(n_threads)

    def share(self, n_threads: int) -> float:
        """The share of a processor that each of our threads gets."""
        wanted = n_threads + self.n_busy * self.weight
        return 1.0 if n_threads + self.n_busy <= self.n_processors else min(1.0, self.n_processors / wanted)

    def seconds(self, n_threads: int) -> float:
        share = self.share(n_threads)
        waits = self.loss if share < 1.0 and n_threads > 1 else 1.0
        return self.step_s / n_threads / share * waits

    def step(self) -> float:
        duration_s = self.seconds(self.n_threads)
        own = self.n_threads * self.share(self.n_threads)
        others = min(self.n_busy, self.n_processors - own)
        self.pass_time(duration_s, own, others)
        return duration_s

    def pass_time(self, duration_s: float, own: float = 0.0, others: float | None = None) -> None:
        others = min(self.n_busy, self.n_processors) if others is None else others
        self.now_s += duration_s
        self.own_s += own * duration_s
        self.idle_s += max(0.0, self.n_processors - own - others) * duration_s


def control_of(machine: Machine, n_most: int | None = None) -> ThreadControl:
    n_most = n_most or machine.n_processors
    machine.n_threads = n_most
    meter = LoadMeter(range(machine.n_processors), machine.read, machine.running)
    return ThreadControl(n_most, machine.apply, StepCost(), meter, machine.clock)


def run(machine: Machine, control: ThreadControl, duration_s: float, n_tokens: int = 1) -> float:
    """Compute steps for so long; return the steps a second."""
    begun_s, n_steps = machine.now_s, 0
    while machine.now_s < begun_s + duration_s:
        control.look()
        control.prepare(n_tokens)
        control.observe(n_tokens, machine.step())
        n_steps += 1
    return n_steps / (machine.now_s - begun_s)


@pytest.mark.parametrize(("n_busy_meanwhile", "n_threads"), [(0, 2), (1, 1), (2, 1)])
def test_after_a_pause_the_first_step_has_all_threads_if_nobody_computed_meanwhile(
    n_busy_meanwhile: int, n_threads: int
) -> None:
    machine = Machine(2, n_busy=2)
    control = control_of(machine)
    run(machine, control, 20.0)
    assert machine.n_threads == 1
    machine.n_busy = n_busy_meanwhile
    machine.pass_time(60.0)
    control.look()
    control.prepare(1)
    assert machine.n_threads == n_threads


@pytest.mark.parametrize("pause_s", [0.6, 5.0, 60.0])
@pytest.mark.parametrize("n_tokens", [1, 512])
def test_what_others_took_in_a_pause_and_take_no_more_takes_no_thread_away(pause_s: float, n_tokens: int) -> None:
    machine = Machine(2, n_busy=2)
    control = control_of(machine)
    run(machine, control, 20.0, n_tokens)
    assert machine.n_threads == 1
    machine.pass_time(pause_s)
    machine.n_busy = 0
    machine.changes.clear()
    run(machine, control, 5.0, n_tokens)
    assert machine.changes == [2]


loads = st.builds(
    lambda n, others, idle: ProcessorLoad(others * n, min(idle, 1 - others) * n, n),
    st.integers(1, 128),
    st.floats(0, 1),
    st.floats(0, 1),
)


@given(loads, st.integers(1, 128), st.integers(1, 128))
def test_a_decision_is_a_number_of_threads_between_one_and_all(
    load: ProcessorLoad, n_threads: int, n_most: int
) -> None:
    wanted = decide(load, min(n_threads, n_most), n_most)
    assert 1 <= wanted <= n_most
    if load.others <= QUIET_PROCESSORS:
        assert wanted == n_most


@given(st.integers(1, 64), st.integers(0, 80))
def test_where_nobody_gives_way_threads_settle_on_the_processors_that_others_leave(
    n_processors: int, n_busy: int
) -> None:
    machine = Machine(n_processors, n_busy)
    n_threads = n_processors
    for _ in range(n_processors):
        own = n_threads * machine.share(n_threads)
        others = min(n_busy, n_processors - own)
        n_threads = decide(ProcessorLoad(others, n_processors - own - others, n_processors), n_threads, n_processors)
    assert n_threads == max(1, n_processors - n_busy)


@pytest.mark.slow
@settings(max_examples=10)  # of five minutes each, of 750 in all
@given(n_processors=st.integers(2, 16), n_busy=st.integers(0, 24), weight=st.sampled_from([0.3, 1.0]))
def test_beside_others_steps_are_nearly_as_fast_as_with_the_best_number(
    n_processors: int, n_busy: int, weight: float
) -> None:
    machine = Machine(n_processors, n_busy, weight)
    control = control_of(machine)
    run(machine, control, 60.0)
    speed = run(machine, control, 240.0)
    usual = [1, n_processors, max(1, n_processors - n_busy)]
    assert speed >= 0.8 * max(1 / machine.seconds(n_threads) for n_threads in usual)


@pytest.mark.slow
@given(n_processors=st.integers(2, 16), n_busy=st.integers(1, 24))
def test_all_threads_are_used_again_within_seconds_of_quiet(n_processors: int, n_busy: int) -> None:
    machine = Machine(n_processors, n_busy)
    control = control_of(machine)
    run(machine, control, 20.0)
    machine.n_busy = 0
    run(machine, control, 3.0)
    assert control.n_threads == n_processors
    assert not control.use.is_machine_busy


def test_what_the_service_computes_while_a_model_is_loaded_takes_no_thread_away() -> None:
    # of a load beside a service that starts: ours took 1.6 processors, with one thread that loads
    assert decide(ProcessorLoad(others=0.25, idle=0.14, n_processors=2), 1, 2) == 2


@pytest.mark.parametrize("noise", [1.0, 1.2, 1.6])
def test_the_first_quiet_look_gives_all_threads_back_without_comparing_them(noise: float) -> None:
    machine = Machine(2, n_busy=2)
    control = control_of(machine)
    machine.pass_time(2.0)  # a model loads beside others
    control = ThreadControl(2, machine.apply, StepCost(), control.meter, machine.clock)
    run(machine, control, 0.1)
    assert machine.n_threads == 1
    run(machine, control, 0.4, n_tokens=64)
    machine.n_busy = 0
    machine.pass_time(2.0)
    control.look()
    for n_tokens in (1, 64, 1):
        control.prepare(n_tokens)
        assert machine.n_threads == 2
        control.observe(n_tokens, noise * machine.step())


@pytest.mark.slow
@given(st.integers(2, 64))
def test_a_quiet_machine_is_looked_at_twice_a_second_and_nothing_changes(n_processors: int) -> None:
    machine = Machine(n_processors)
    control = control_of(machine)
    run(machine, control, 10.0)
    assert not machine.changes
    assert machine.n_looks <= 22


def test_beside_two_busy_programs_two_processors_compute_with_one_thread() -> None:
    machine = Machine(2, n_busy=2)
    control = control_of(machine)
    run(machine, control, 2.0)
    assert control.n_threads == 1
    assert control.use.is_machine_busy
    assert control.use.others_share is not None
    machine.changes.clear()
    run(machine, control, 600.0)
    assert len(machine.changes) < 40  # another number is tried ever more rarely
    assert run(machine, control, 100.0) >= 0.9 / machine.seconds(1)


def test_programs_of_low_priority_take_no_thread_away() -> None:
    machine = Machine(2, n_busy=2, weight=0.02, loss=1.0)
    control = control_of(machine)
    assert run(machine, control, 120.0) >= 0.95 / machine.seconds(2)


def test_a_change_that_made_steps_slower_is_taken_back() -> None:
    machine = Machine(4, n_busy=1, loss=0.5)  # what computes beside others without any loss
    control = control_of(machine)
    run(machine, control, 60.0)
    assert run(machine, control, 60.0) >= 0.9 / machine.seconds(4)


@pytest.mark.parametrize(
    ("n_processors", "n_busy", "n_threads"), [(2, 0, 2), (2, 1, 1), (2, 2, 1), (8, 3, 5), (8, 16, 1)]
)
def test_the_load_while_a_model_was_loaded_decides_the_first_number(
    n_processors: int, n_busy: int, n_threads: int
) -> None:
    machine = Machine(n_processors, n_busy)
    meter = LoadMeter(range(n_processors), machine.read, machine.running)
    meter.read()
    own = machine.share(1)  # loading is done by one thread
    machine.pass_time(2.0, own, min(n_busy, n_processors - own))
    control = ThreadControl(n_processors, machine.apply, StepCost(), meter, machine.clock)
    assert control.n_threads == n_threads
    assert control.use.is_machine_busy == (n_threads < n_processors)
    seen: list[int] = []
    control.on_change(seen.append)  # of contexts that are made later, with all threads
    assert seen == [n_threads] * (n_threads < n_processors)


def test_prompts_are_compared_with_prompts() -> None:
    machine = Machine(2, n_busy=2)
    control = control_of(machine)
    run(machine, control, 5.0, n_tokens=512)
    assert control.n_threads == 1
    run(machine, control, 1.0)  # an answer, whose steps are far shorter
    assert control.n_threads == 1


@dataclass
class Shares:
    """Two processors that are always taken, and shared by groups of programs: ours gets more of them with two threads
    than with one, though its load says that it wants one. `token_s` is by number of threads, of prompts and answers."""

    prompt_token_s: dict[int, float]
    answer_token_s: dict[int, float]
    noise: float = 0.0
    random: random.Random = field(default_factory=lambda: random.Random(1))
    now_s: float = 0.0
    own_s: float = 0.0
    n_threads: int = 2
    n_tokens: Counter[tuple[str, int]] = field(default_factory=Counter)  # by kind of step and threads
    steps: list[tuple[int, int]] = field(default_factory=list)  # tokens and threads of each step of a prompt

    def control(self) -> ThreadControl:
        meter = LoadMeter(range(2), lambda: CpuTimes(2 * self.now_s, 0.0, self.own_s), lambda: None)
        return ThreadControl(2, self.apply, StepCost(), meter, lambda: self.now_s)

    def apply(self, n_threads: int) -> None:
        self.n_threads = n_threads

    def compute(self, control: ThreadControl, n_tokens: int) -> None:
        control.look()
        kind = "answer" if n_tokens == 1 else "prompt"
        if kind == "prompt":
            n_tokens = min(n_tokens, control.prompt_step_tokens or n_tokens)
        control.prepare(n_tokens)
        token_s = (self.answer_token_s if kind == "answer" else self.prompt_token_s)[self.n_threads]
        duration_s = n_tokens * token_s * self.random.lognormvariate(0.0, self.noise)
        self.now_s += duration_s
        self.own_s += duration_s * (1.0 if self.n_threads == 2 else 0.45)
        self.n_tokens[kind, self.n_threads] += n_tokens
        if kind == "prompt":
            self.steps.append((n_tokens, self.n_threads))
        control.observe(n_tokens, duration_s)

    def chat(self, control: ThreadControl, n_prompt: int, n_answer: int) -> None:
        """Read a prompt in steps of at most 128 tokens, and write an answer."""
        while n_prompt > 0:
            before = sum(self.n_tokens.values())
            self.compute(control, min(128, n_prompt))
            n_prompt -= sum(self.n_tokens.values()) - before
        for _ in range(n_answer):
            self.compute(control, 1)
        self.now_s += 3.0

    def share(self, kind: str, n_threads: int) -> float:
        return self.n_tokens[kind, n_threads] / sum(n for key, n in self.n_tokens.items() if key[0] == kind)


MEASURED = {1: 0.045, 2: 0.020}  # seconds a token of a prompt, SmolLM2 135M on two processors beside ten programs


@pytest.mark.parametrize(
    ("token_s", "best"),
    [(MEASURED, 2), ({1: 0.010, 2: 0.040}, 1), ({1: 0.0045, 2: 0.002}, 2), ({1: 0.030, 2: 0.020}, 2)],
)
@pytest.mark.parametrize("n_prompt", [300, 1500, 6000])
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_prompts_with_long_steps_keep_the_threads_that_read_faster(
    token_s: dict[int, float], best: int, n_prompt: int, noise: float
) -> None:
    shares = Shares(token_s, {1: 0.02, 2: 0.02}, noise)
    control = shares.control()
    while sum(shares.n_tokens.values()) < 60_000:
        shares.chat(control, n_prompt, n_answer=0)
    assert shares.share("prompt", best) >= 0.9


def test_a_trial_of_prompts_takes_small_steps_and_ends_after_two() -> None:
    shares = Shares(MEASURED, MEASURED)
    control = shares.control()
    shares.chat(control, 6000, n_answer=0)
    tried = [n_tokens for n_tokens, n_threads in shares.steps if n_threads == 1]
    assert tried
    assert max(tried) <= PROMPT_TRIAL_TOKENS
    assert sum(tried) <= 3 * PROMPT_TRIAL_TOKENS  # the first has nothing to be compared with


def test_answers_and_prompts_have_threads_of_their_own() -> None:
    shares = Shares(MEASURED, {1: 0.025, 2: 0.2})
    control = shares.control()
    for _ in range(40):
        shares.chat(control, 600, n_answer=100)
    assert shares.share("prompt", 2) >= 0.9
    assert shares.share("answer", 1) >= 0.9


@pytest.mark.parametrize(
    ("ratios", "is_promised", "stays"),
    [
        ([], True, None),
        ([1.02], True, None),
        ([0.6], True, True),
        ([0.6], False, True),
        ([2.25], True, False),
        ([1.02, 0.99], True, None),
        ([1.02, 0.99, 1.01], True, True),  # as fast, and others have a thread more
        ([1.02, 0.99, 1.01], False, False),
        ([1.2, 0.9, 1.3], True, False),
        ([0.9, 1.4, 0.8], False, True),
    ],
)
def test_a_number_stays_that_is_faster_in_pairs(ratios: list[float], is_promised: bool, stays: bool | None) -> None:
    assert judge(ratios, is_promised=is_promised) is stays


@given(st.lists(st.floats(0.01, 100), max_size=3), st.floats(1.0, 3.0))
def test_what_is_slower_than_what_lost_loses_too(ratios: list[float], factor: float) -> None:
    for is_promised in (True, False):
        if judge(ratios, is_promised=is_promised) is False:
            assert judge([ratio * factor for ratio in ratios], is_promised=is_promised) is not True


@pytest.mark.parametrize("noise", [0.0, 0.15, 0.3])
@pytest.mark.parametrize("token_s", [0.001, 0.02])
@pytest.mark.parametrize("ratio", [1.3, 1.6, 2.5])
def test_noise_does_not_make_the_slower_number_the_usual_one(ratio: float, token_s: float, noise: float) -> None:
    """Over several runs: in one of them chance may favour the slower number for long."""
    found = []
    for seed in range(8):
        shares = Shares({1: token_s * ratio, 2: token_s}, MEASURED, noise, random.Random(seed))
        control = shares.control()
        while shares.now_s < 600.0:
            shares.chat(control, 1500, n_answer=0)
        found.append(shares.share("prompt", 2))
    assert mean(found) >= 0.75


def test_what_is_computed_unobserved_follows_the_load_alone() -> None:
    machine = Machine(2, n_busy=2)
    control = control_of(machine)
    for _ in range(3):
        machine.pass_time(1.0, own=1.0, others=1.0)
        control.look(may_try=False)
    assert machine.n_threads == 1
    machine.n_busy = 0
    for _ in range(3):
        machine.pass_time(1.0, own=1.0, others=0.0)
        control.look(may_try=False)
    assert machine.n_threads == 2


def test_what_was_seen_long_ago_decides_nothing() -> None:
    machine = Machine(2, n_busy=2, tells_running=False)
    control = control_of(machine)
    run(machine, control, 1.5)
    machine.pass_time(3600.0)
    machine.n_busy = 0
    control.look()
    assert control.n_threads == 1
    run(machine, control, 1.5)
    assert control.n_threads == 2


def test_costs_of_steps_belong_to_the_threads_that_computed_them() -> None:
    machine = Machine(2, n_busy=2)
    control = control_of(machine)
    cost = control.step_cost
    cost.observe(1, 0.02)
    cost.observe(4, 0.06)
    known = cost.ratio(4)
    run(machine, control, 1.5)
    assert (control.n_threads, cost.single_s) == (1, None)
    cost.observe(1, 0.02)
    cost.observe(4, 0.01)
    assert cost.ratio(4) < known
    control.restore()
    assert machine.n_threads == 2
    assert (cost.ratio(4), cost.single_s) == (known, 0.02)


def test_an_engine_looks_before_its_steps_and_tells_its_threads() -> None:
    machine = Machine(2, n_busy=2)
    backend = FakeBackend(end_every=100_000)
    control = ThreadControl(
        2, machine.apply, StepCost(), LoadMeter(range(2), machine.read, machine.running), machine.clock
    )
    machine.n_threads = 2
    seen: list[int] = []
    control.on_change(seen.append)
    decode = backend.decode
    backend.decode = lambda chunks: (machine.step(), decode(chunks))[1]  # type: ignore[method-assign]
    engine = Engine(backend, lambda _event: None, threads=control, clock=machine.clock)
    assert engine.thread_use is not None
    engine.submit(Request(request_id="a", prompt="hello", max_tokens=400))
    while not engine.is_idle:
        engine.step()
    assert seen[:1] == [1]
    assert engine.thread_use.n_threads == machine.n_threads


def test_an_engine_with_a_fixed_number_tells_none() -> None:
    engine = Engine(FakeBackend(), lambda _event: None)
    assert engine.thread_use is None
