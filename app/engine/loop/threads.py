"""How many threads compute a step, beside other programs.

The operations of a step end with a barrier of all threads. Where other programs compute, one of the threads waits for a
processor and all others for it: two threads on two busy processors write 7 tokens a second with SmolLM2 135M, one
thread 40. So threads follow what the machine gives. `decide` is pure; `ThreadControl` looks at the
machine twice a second at most, changes the number, and takes a change back that made steps slower.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median

from app.engine.speculative.cost_model import StepCost
from app.protocol.chat import ThreadUse
from offload.devices.host import LoadMeter, ProcessorLoad

QUIET_PROCESSORS = 0.15  # what others take without slowing a step: a desktop, the app that draws an answer
_ROUNDING = 0.4  # of a processor, which a thread may share
_LOOK_S = 0.5  # a shorter look sees few ticks of the system's clock (10 ms)
_STALE_S = 10.0  # since the last look, after which its figures say nothing about now
_N_TRIAL_STEPS = 3  # after a change, besides the first one
_TRIAL_S = 3.0  # at most: what computes no comparable steps cannot judge
# By which a change has to be slower to be taken back: after some steps, after the second one, after the first.
_SLOWER, _FAR_SLOWER, _HOPELESS = 1.03, 2.0, 4.0
_TRIAL_SHARE = 0.01  # of the time that looking for a better number may cost, where the load alone does not say
_FIRST_PAUSE_S, _MOST_PAUSE_S = 10.0, 120.0
_N_RECENT = 8  # steps whose median counts
_DECODE_TOKENS = 16  # up to which steps are compared as answers, above as prompts


def decide(load: ProcessorLoad, n_threads: int, n_most: int) -> int:
    """Return how many of `n_most` threads to use after a look during which `n_threads` computed. Pure.

    Where no processor was idle, more wanted to run than there are, and all got the same share of what they wanted: ours
    wanted `n_threads`. More threads are used only where processors were idle, or others were quiet.
    """
    if load.others <= QUIET_PROCESSORS:
        return n_most
    wanted_by_others, ours = load.others, load.n_processors - load.others - load.idle
    if load.idle <= QUIET_PROCESSORS and ours > 0:
        wanted_by_others *= max(1.0, n_threads / ours)
    free = int(max(0.0, load.n_processors - wanted_by_others) + _ROUNDING)
    if free <= n_threads:
        return max(1, min(free, n_most))
    return min(n_most, n_threads + int(load.idle + _ROUNDING))


@dataclass(slots=True)
class _Trial:
    """A change that is being judged: from `n_before` threads, whose steps took `before_s` a token."""

    n_before: int
    before_s: dict[bool, float]
    begun_s: float
    is_first_step: bool = True


@dataclass(slots=True)
class _Pause:
    """When a change that did not pay may be tried again."""

    until_s: float = 0.0
    length_s: float = _LOOK_S


@dataclass(slots=True)
class ThreadControl:
    """The threads of one engine: `n_most` on a quiet machine, fewer beside others. A `meter` that was read before the
    model was loaded shows what to begin with. `apply` sets the number in native code. One thread makes all calls; `use`
    may be read by any."""

    n_most: int
    apply: Callable[[int], None]
    step_cost: StepCost
    meter: LoadMeter = field(default_factory=LoadMeter)
    clock: Callable[[], float] = time.perf_counter
    n_threads: int = field(init=False)
    use: ThreadUse = field(init=False)
    _recent: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})
    _trial: _Trial | None = None
    _pauses: dict[int, _Pause] = field(default_factory=dict)  # by number of threads
    _looked_s: float = 0.0
    _callbacks: list[Callable[[int], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.n_threads = self.n_most
        self.use = ThreadUse(self.n_most, self.n_most)
        self.step_cost.use_threads(self.n_most)
        load, self._looked_s = self.meter.read(), self.clock()
        # While the model was loaded, by one thread: else the first prompt would be computed with all of them.
        if load is not None and (n_threads := decide(load, 1, self.n_most)) != self.n_most:
            self._change(n_threads)
            self.use = ThreadUse(n_threads, self.n_most, load.others / load.n_processors, load.n_processors)

    def on_change(self, callback: Callable[[int], None]) -> None:
        """Call `callback` with the number of threads whenever it changes."""
        self._callbacks.append(callback)

    def restore(self) -> None:
        """Use all threads, and the costs of steps that belong to them."""
        self._trial = None
        if self.n_threads != self.n_most:
            self._change(self.n_most)

    def observe(self, n_tokens: int, duration_s: float) -> None:
        """Count a step of `n_tokens`, and judge a change by it."""
        is_answer = n_tokens <= _DECODE_TOKENS
        token_s = duration_s / (self.step_cost.ratio(n_tokens) if is_answer else n_tokens)
        trial, recent = self._trial, self._recent[is_answer]
        before_s = None if trial is None else trial.before_s.get(is_answer)
        if trial is not None and trial.is_first_step:  # it starts threads, or lets them sleep
            trial.is_first_step = False
            if before_s is not None and token_s > _HOPELESS * before_s:
                self._judge(trial, before_s, token_s, n_steps=0)
            return
        recent.append(token_s)
        del recent[:-_N_RECENT]
        is_known = len(recent) >= _N_TRIAL_STEPS
        if trial is not None and before_s is not None and (is_known or token_s > _FAR_SLOWER * before_s):
            self._judge(trial, before_s, median(recent), n_steps=len(recent))

    def look(self) -> None:
        """Look at the machine, if the last look was long enough ago, and change the threads if that promises more."""
        now_s = self.clock()
        since_s = now_s - self._looked_s
        if since_s < _LOOK_S:
            return
        if self._trial is not None:
            is_comparable = any(self._recent[kind] for kind in self._trial.before_s)
            if is_comparable or now_s - self._trial.begun_s < _TRIAL_S:
                return
            self._trial = None  # nothing comparable was computed: the load has decided
        load, self._looked_s = self.meter.read(), now_s
        if load is None or since_s > _STALE_S:
            return
        wanted = decide(load, self.n_threads, self.n_most)
        self.use = ThreadUse(self.n_threads, self.n_most, load.others / load.n_processors, load.n_processors)
        candidates = [wanted]
        if load.others <= QUIET_PROCESSORS:
            self._pauses.clear()
        else:
            # How much a program of low priority or another virtual machine stands in the way, only steps show; and one
            # thread alone may be fast where two are as slow as three.
            others = [each for each in (wanted - 1, wanted + 1, 1) if 1 <= each <= self.n_most and each != wanted]
            candidates += others
            for each in others:
                self._pauses.setdefault(each, _Pause(now_s + _FIRST_PAUSE_S, _FIRST_PAUSE_S))
        for each in candidates:
            if each != self.n_threads and now_s >= self._pauses.get(each, _Pause()).until_s:
                self._begin_trial(each, now_s)
                return

    def _begin_trial(self, n_threads: int, now_s: float) -> None:
        medians = {kind: median(times) for kind, times in self._recent.items() if len(times) >= _N_TRIAL_STEPS}
        self._trial = _Trial(self.n_threads, medians, now_s)
        self._change(n_threads)

    def _judge(self, trial: _Trial, before_s: float, after_s: float, n_steps: int) -> None:
        self._trial = None
        if after_s <= _SLOWER * before_s:
            return
        now_s, tried = self.clock(), self.n_threads
        lost_s = (after_s - before_s) * (n_steps + 1)
        pause = self._pauses.setdefault(tried, _Pause())
        pause.length_s = min(_MOST_PAUSE_S, max(2 * pause.length_s, lost_s / _TRIAL_SHARE))
        pause.until_s = now_s + pause.length_s
        self._change(trial.n_before)

    def _change(self, n_threads: int) -> None:
        self.apply(n_threads)
        self.n_threads = n_threads
        self.use = replace(self.use, n_threads=n_threads)
        self.step_cost.use_threads(n_threads)
        self._recent = {True: [], False: []}
        for callback in self._callbacks:
            callback(n_threads)
        # What was computed with the old number says nothing about the load with the new one.
        self.meter.read()
        self._looked_s = self.clock()
