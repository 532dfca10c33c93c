"""How many threads compute a step, beside other programs.

The operations of a step end with a barrier of all threads. Where other programs compute, one of the threads waits for a
processor and all others for it: two threads on two busy processors write 7 tokens a second with SmolLM2 135M, one
thread 40. So threads follow what the machine gives. `decide` says what its load promises and `judge` what steps show;
both are pure. `ThreadControl` looks at the machine twice a second at most, and tries another number of threads in turns
with the one before. Answers, which wait for the memory, and prompts, which compute, each have a number of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from app.engine.speculative.cost_model import StepCost
from app.protocol.chat import ThreadUse
from offload.devices.host import LoadMeter, ProcessorLoad

QUIET_PROCESSORS = 0.15  # what others take without slowing a step: a desktop, the app that draws an answer
PROMPT_TRIAL_TOKENS = (
    64  # of a step while prompts try a number: the machine has often changed before four large ones end
)
_ROUNDING = 0.4  # of a processor, which a thread may share
_LOOK_S = 0.5  # a shorter look sees few ticks of the system's clock (10 ms)
_STALE_S = 10.0  # after which a look or a step says nothing about now
_DECODE_TOKENS = 16  # up to which steps are compared as answers, above as prompts
_LEAST_COMPARED = 48  # tokens of a prompt's step: fewer cost more each
_N_RECENT = 8  # steps whose median counts
# A block of steps of one number: of answers three, after one that starts threads or lets them sleep, of prompts one.
_N_ANSWER_STEPS, _N_PROMPT_STEPS = 3, 1
_N_PAIRS = 3  # of blocks, where the first does not say enough
_CLEAR = 1.5  # the ratio of a single pair that does
_HOPELESS, _FAR_SLOWER = 4.0, 2.0  # of the first step of a block and of those after it: it is not computed to its end
_SLOWER = 1.03  # by how much a number may be slower that the load promises to be better, and has to be faster otherwise
_TRIAL_SHARE = 0.01  # of the time that looking for a better number may cost, where the load alone does not say
_FIRST_PAUSE_S, _MOST_PAUSE_S = 10.0, 120.0


def decide(load: ProcessorLoad, n_threads: int, n_most: int) -> int:
    """Return how many of `n_most` threads to use after a look during which `n_threads` computed. Pure.

    Where no processor was idle, more wanted to run than there are, and all got the same share of what they wanted: ours
    wanted `n_threads`. More threads are used only where processors were idle, ours took more than the threads can (the
    service that starts while a model is loaded), or others were quiet.
    """
    if load.others <= QUIET_PROCESSORS:
        return n_most
    wanted_by_others, ours = load.others, load.n_processors - load.others - load.idle
    if load.idle <= QUIET_PROCESSORS and ours > 0:
        wanted_by_others *= max(1.0, n_threads / ours)
    free = int(max(0.0, load.n_processors - wanted_by_others) + _ROUNDING)
    if free <= n_threads:
        return max(1, min(free, n_most))
    return min(n_most, free, max(n_threads + int(load.idle + _ROUNDING), int(max(0.0, ours) + load.idle + _ROUNDING)))


def judge(ratios: Sequence[float], *, is_promised: bool) -> bool | None:
    """Return whether a number of threads that is tried stays, None while that is unknown. Pure.

    `ratios` are the times of a token with that number over those with the one before, of blocks of steps that were
    computed one after the other: what the machine gives changes from second to second, and a token far into a prompt
    takes longer. `is_promised`: the load says that it is better."""
    if len(ratios) < _N_PAIRS and (not ratios or 1 / _CLEAR < ratios[0] < _CLEAR):
        return None
    return median(ratios) <= (_SLOWER if is_promised else 1 / _SLOWER)


@dataclass(slots=True)
class _Trial:
    """`n_tried` threads in turns with the `n_before` before, which took `reference_s` a token if that is known."""

    n_tried: int
    n_before: int
    is_promised: bool
    reference_s: float | None
    last_s: float
    is_tried: bool = True  # whose block is being computed
    block: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    tried_s: float = 0.0  # that steps with `n_tried` took


@dataclass(slots=True)
class _Pause:
    """When a number that lost may be tried again."""

    until_s: float = 0.0
    length_s: float = _FIRST_PAUSE_S / 2


@dataclass(slots=True)
class _Kind:
    """Steps of one kind: the threads that compute them, and what their latest steps took a token."""

    n_threads: int
    n_block: int
    n_settling: int  # steps after a change that do not count
    n_unsettled: int = 0
    recent: list[float] = field(default_factory=list)
    last_s: float = 0.0
    trial: _Trial | None = None
    pauses: dict[int, _Pause] = field(default_factory=dict)  # by number of threads

    @property
    def n_now(self) -> int:
        """The threads of the next step."""
        if self.trial is None:
            return self.n_threads
        return self.trial.n_tried if self.trial.is_tried else self.trial.n_before

    def settle(self, n_threads: int) -> None:
        if n_threads != self.n_threads:
            self.recent = []
        self.n_threads, self.trial, self.n_unsettled = n_threads, None, self.n_settling

    def begin_trial(self, n_threads: int, now_s: float, *, is_promised: bool) -> None:
        latest = self.recent[-self.n_block :] if now_s - self.last_s < _STALE_S else []
        reference_s = median(latest) if len(latest) == self.n_block else None
        self.trial = _Trial(n_threads, self.n_threads, is_promised, reference_s, now_s)
        self.n_unsettled = self.n_settling

    def end_trial(self, trial: _Trial, ratio: float, now_s: float, *, stays: bool) -> None:
        """Go on with the winner, and let the other number rest: the longer, the more often and the more it lost."""
        winner, loser = (trial.n_tried, trial.n_before) if stays else (trial.n_before, trial.n_tried)
        lost_s = 0.0 if stays else trial.tried_s * (1 - 1 / max(1.0, ratio))
        pause = self.pauses.setdefault(loser, _Pause())
        pause.length_s = min(_MOST_PAUSE_S, max(2 * pause.length_s, lost_s / _TRIAL_SHARE))
        pause.until_s = now_s + pause.length_s
        self.pauses.pop(winner, None)
        self.settle(winner)

    def end_stale_trial(self, now_s: float) -> None:
        """End a trial that nothing comparable was computed for: the load has decided."""
        if (trial := self.trial) is not None and now_s - trial.last_s > _STALE_S:
            self.settle(trial.n_tried if trial.is_promised else trial.n_before)


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
    _answers: _Kind = field(init=False)
    _prompts: _Kind = field(init=False)
    _last: _Kind = field(init=False)  # of the last step
    _n_used: int = field(init=False)  # most threads since the last look
    _is_quiet: bool = True
    _looked_s: float = 0.0
    _computed_s: float = 0.0  # when the last step ended
    _callbacks: list[Callable[[int], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.n_threads = self._n_used = self.n_most
        self._answers = _Kind(self.n_most, _N_ANSWER_STEPS, n_settling=1)
        self._prompts = self._last = _Kind(self.n_most, _N_PROMPT_STEPS, n_settling=0)
        self.use = ThreadUse(self.n_most, self.n_most)
        self.step_cost.use_threads(self.n_most)
        load, self._looked_s = self.meter.read(), self.clock()
        # While the model was loaded, by one thread: else the first prompt would be computed with all of them.
        if load is not None and (n_threads := decide(load, 1, self.n_most)) != self.n_most:
            self._use(n_threads)
            self.use = ThreadUse(n_threads, self.n_most, load.others / load.n_processors, load.n_processors)
            self._is_quiet = False
            self._look_anew()

    def on_change(self, callback: Callable[[int], None]) -> None:
        """Call `callback` with the number of threads whenever it changes, and now if that has happened already."""
        self._callbacks.append(callback)
        if self.n_threads != self.n_most:
            callback(self.n_threads)

    def restore(self) -> None:
        """Use all threads, and the costs of steps that belong to them."""
        self._use(self.n_most)

    @property
    def prompt_step_tokens(self) -> int | None:
        """How many tokens a step of a prompt may have while numbers are compared by them, else None."""
        return None if self._prompts.trial is None else PROMPT_TRIAL_TOKENS

    def prepare(self, n_tokens: int) -> None:
        """Set the threads for a step of `n_tokens`."""
        self._last = self._answers if n_tokens <= _DECODE_TOKENS else self._prompts
        self._last.end_stale_trial(self.clock())
        self._change(self._last.n_now)

    def observe(self, n_tokens: int, duration_s: float) -> None:
        """Count a step of `n_tokens`, for which `prepare` was called, and judge a trial by it."""
        kind, now_s = self._last, self.clock()
        self._computed_s = now_s
        is_answer = kind is self._answers
        if not is_answer and n_tokens < _LEAST_COMPARED:
            return
        if kind.trial is not None:
            kind.trial.last_s = now_s
        token_s = duration_s / (self.step_cost.ratio(n_tokens) if is_answer else n_tokens)
        is_settling = kind.n_unsettled > 0
        kind.n_unsettled = max(0, kind.n_unsettled - 1)
        if kind.trial is None:
            if not is_settling:
                kind.recent = [*kind.recent[1 - _N_RECENT :], token_s]
                kind.last_s = now_s
            return
        self._compare(kind, kind.trial, token_s, duration_s, is_settling=is_settling)

    def look(self, *, may_try: bool = True) -> None:
        """Look at the machine, if the last look was long enough ago, and try other threads if that promises more.
        Without `may_try`, for what is computed unobserved, the load alone decides."""
        now_s, kind = self.clock(), self._last
        kind.end_stale_trial(now_s)
        if now_s - self._computed_s > _LOOK_S and self._has_quiet_begin():
            return
        since_s = now_s - self._looked_s
        if since_s < _LOOK_S or (may_try and kind.trial is not None):
            return
        load, self._looked_s = self.meter.read(), now_s
        n_used, self._n_used = self._n_used, self.n_threads
        if load is None:
            return
        self.use = ThreadUse(self.n_threads, self.n_most, load.others / load.n_processors, load.n_processors)
        self._is_quiet = load.others <= QUIET_PROCESSORS
        if self._is_quiet:
            self._use_all_again()
            return
        if since_s > _STALE_S:  # what others took while nothing was computed here says nothing about now
            return
        wanted = decide(load, n_used, self.n_most)
        if not may_try:
            self._change(wanted)
            return
        # How much a program of low priority or another virtual machine stands in the way, only steps show; and one
        # thread alone may be fast where two are as slow as three.
        others = [each for each in (wanted - 1, wanted + 1, 1) if 1 <= each <= self.n_most and each != wanted]
        for each in others:
            kind.pauses.setdefault(each, _Pause(now_s + _FIRST_PAUSE_S, _FIRST_PAUSE_S))
        for each in (wanted, *others):
            if each != kind.n_threads and now_s >= kind.pauses.get(each, _Pause()).until_s:
                kind.begin_trial(each, now_s, is_promised=each == wanted)
                return

    def _has_quiet_begin(self) -> bool:
        """Return whether others compute nothing now, after a pause; then all threads are used. What others took while
        nothing was computed here, such as the tests that an agent ran, is over then. With the threads that it left,
        and a comparison with all, the first twenty steps of an answer took half as long again."""
        if not self.meter.has_room_now(self.n_most):
            return False
        if self.n_threads < self.n_most:
            self._use(self.n_most)
        self._look_anew()
        return True

    def _use_all_again(self) -> None:
        """Use all threads for the next step, as others are quiet: comparing them with fewer first took a third of a
        short answer. A trial that runs ends by its steps."""
        self._answers.pauses, self._prompts.pauses = {}, {}
        n_threads = {self._answers.n_threads, self._prompts.n_threads, self.n_threads}
        if self._answers.trial is self._prompts.trial is None and n_threads != {self.n_most}:
            self._use(self.n_most)

    def _compare(self, kind: _Kind, trial: _Trial, token_s: float, duration_s: float, *, is_settling: bool) -> None:
        """Count a step of a trial, end its block, and the trial once it shows enough."""
        if trial.is_tried:
            trial.tried_s += duration_s
            limit = _HOPELESS if is_settling else _FAR_SLOWER
            if trial.reference_s is not None and token_s > limit * trial.reference_s:
                self._end_trial(kind, trial, token_s / trial.reference_s, stays=False)
                return
        if not is_settling:
            trial.block.append(token_s)
        if len(trial.block) < kind.n_block:
            return
        block_s, other_s = median(trial.block), trial.reference_s
        if other_s:
            trial.ratios.append(block_s / other_s if trial.is_tried else other_s / block_s)
            if (stays := judge(trial.ratios, is_promised=trial.is_promised)) is not None:
                self._end_trial(kind, trial, median(trial.ratios), stays=stays)
                return
        trial.reference_s, trial.block, trial.is_tried = block_s, [], not trial.is_tried
        kind.n_unsettled = kind.n_settling

    def _end_trial(self, kind: _Kind, trial: _Trial, ratio: float, *, stays: bool) -> None:
        kind.end_trial(trial, ratio, self.clock(), stays=stays)
        self._change(kind.n_threads)
        self._look_anew()

    def _use(self, n_threads: int) -> None:
        """Compute all steps with `n_threads`, without a trial."""
        self._answers.settle(n_threads)
        self._prompts.settle(n_threads)
        self._change(n_threads)

    def _look_anew(self) -> None:
        """Begin the next look now: what was computed with other numbers says nothing about the load with this one."""
        self.meter.read()
        self._looked_s, self._n_used = self.clock(), self.n_threads

    def _change(self, n_threads: int) -> None:
        if self.step_cost.n_threads != self._answers.n_now:  # it is the cost of answers
            self.step_cost.use_threads(self._answers.n_now)
        if n_threads == self.n_threads:
            return
        self.apply(n_threads)
        self.n_threads, self._n_used = n_threads, max(n_threads, self._n_used)
        self.use = replace(self.use, n_threads=n_threads)
        for callback in self._callbacks:
            callback(n_threads)
