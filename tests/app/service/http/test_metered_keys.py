from __future__ import annotations

import pytest

from app.engine.request import Timings, Usage
from app.protocol.errors import RequestError
from app.protocol.metering import MeteredUsage
from app.service.http import metered_keys
from app.service.http.metered_keys import MeteredKeys, UsageMeter


def test_a_key_is_known_by_its_secret_and_its_id_until_it_is_closed() -> None:
    keys = MeteredKeys()
    with keys.open() as key, keys.open() as other:
        assert key.id != other.id
        assert keys.of_secret(key.secret) is keys.of_id(key.id)
        assert keys.of_secret(other.secret) is not keys.of_secret(key.secret)
        assert keys.of_secret(key.secret + "x") is keys.of_secret("") is keys.of_id("") is None
        assert key.secret not in repr(vars(keys)), "a secret is kept as its hash"
    assert keys.of_secret(key.secret) is keys.of_id(key.id) is None


def test_there_is_a_limit_of_open_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metered_keys, "_MOST_OPEN", 1)
    keys = MeteredKeys()
    with keys.open(), pytest.raises(RequestError, match="1 temporary keys"), keys.open():
        pass
    with keys.open():
        pass


def test_answers_are_summed_and_the_first_prompt_is_that_of_the_first_request_with_tools() -> None:
    meter = UsageMeter()
    assert meter.usage == MeteredUsage()
    answers = [(50, 0, False, 0.5), (1000, 600, True, 3.0), (1100, 1000, True, 0.25)]
    for n_prompt, n_cached, has_tools, wait_s in answers:
        usage = Usage(n_prompt_tokens=n_prompt, n_cached_tokens=n_cached, n_output_tokens=11)
        meter.add_answer(usage, Timings(queue_s=0.05, prefill_s=wait_s, decode_s=1.0), has_tools=has_tools)
    meter.add_failure()
    usage = meter.usage
    assert (usage.n_answers, usage.n_failed) == (3, 1)
    assert (usage.n_prompt_tokens, usage.n_cached_tokens, usage.n_output_tokens) == (2150, 1600, 33)
    assert (usage.n_first_prompt_tokens, usage.n_first_cached_tokens) == (1000, 600)
    assert usage.first_token_s == pytest.approx(0.55)
    assert usage.cached_share == pytest.approx(1600 / 2150)
    assert usage.later_cached_share == pytest.approx(1000 / 1150)
    assert usage.prefill_tokens_per_s == pytest.approx(550 / 3.75)
    assert usage.decode_tokens_per_s == pytest.approx(10.0)


def test_rates_of_nothing_are_zero() -> None:
    usage = MeteredUsage()
    assert (usage.later_cached_share, usage.n_answers) == (0.0, 0)
    assert (usage.cached_share, usage.prefill_tokens_per_s, usage.decode_tokens_per_s) == (0.0, 0.0, 0.0)
