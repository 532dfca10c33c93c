from __future__ import annotations

import re

from app.engine.counters import Counters, Occupancy
from app.engine.frames import Observed
from app.engine.histogram import Histogram
from app.service.api.metrics import exposition
from tests.app.running import RunningService

LINE = re.compile(r'[a-z_:]+(_bucket|_sum|_count)?\{model="[^"]*"(,le="[^"]+")?\} [0-9.e+-]+')


def test_every_figure_stands_under_our_name_and_llama_servers() -> None:
    counters = Counters(n_prompt_tokens=10, n_cached_tokens=4)
    lines = exposition({"m": Observed("", counters, Occupancy(1, 2, 3, 4))}).splitlines()
    assert 'localllm_prompt_tokens_computed_total{model="m"} 6' in lines
    assert 'llamacpp:prompt_tokens_total{model="m"} 6' in lines
    assert "# TYPE llamacpp:requests_processing gauge" in lines


def test_histograms_are_cumulated_and_end_with_a_bucket_for_all() -> None:
    waits = Histogram()
    for seconds in (0.5, 0.5, 2.0, 1e9):
        waits.record(seconds)
    seen = Observed("", Counters(first_token_s=waits), Occupancy(0, 0, 0, 0))
    lines = [line for line in exposition({"m": seen}).splitlines() if line.startswith("localllm_first_token_seconds")]
    counts = [int(line.rpartition(" ")[2]) for line in lines if "_bucket" in line]
    assert counts == [2, 3, 4]
    assert 'localllm_first_token_seconds_count{model="m"} 4' in lines


def test_a_name_cannot_break_out_of_its_label() -> None:
    seen = Observed("", Counters(), Occupancy(0, 0, 0, 0))
    assert '{model="a\\"b\\\\c"}' in exposition({'a"b\\c': seen})


def test_what_is_served_is_prometheus_text(service: RunningService) -> None:
    response = service.http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = [line for line in response.text.splitlines() if not line.startswith("#")]
    assert samples
    assert all(LINE.fullmatch(line) for line in samples)
