from __future__ import annotations

import re

from app.engine.loop.counters import Counters, Histogram
from app.engine.protocol.messages import EngineMetrics
from app.protocol.status import Occupancy
from app.service.api.native.metrics import prometheus_text
from tests.app.running import RunningService

LINE = re.compile(r'[a-z_:]+(_bucket|_sum|_count)?\{model="[^"]*"(,le="[^"]+")?\} [0-9.e+-]+')


def test_every_metric_has_our_name_and_llama_servers() -> None:
    counters = Counters(n_prompt_tokens=10, n_cached_tokens=4)
    lines = prometheus_text({"m": EngineMetrics("", counters, Occupancy(1, 2, 3, 4))}).splitlines()
    assert 'localllm_prompt_tokens_computed_total{model="m"} 6' in lines
    assert 'llamacpp:prompt_tokens_total{model="m"} 6' in lines
    assert "# TYPE llamacpp:requests_processing gauge" in lines


def test_histograms_are_cumulated_and_end_with_a_bucket_for_all() -> None:
    waits = Histogram()
    for seconds in (0.5, 0.5, 2.0, 1e9):
        waits.record(seconds)
    seen = EngineMetrics("", Counters(first_token_s=waits), Occupancy(0, 0, 0, 0))
    lines = [
        line for line in prometheus_text({"m": seen}).splitlines() if line.startswith("localllm_first_token_seconds")
    ]
    counts = [int(line.rpartition(" ")[2]) for line in lines if "_bucket" in line]
    assert counts == [2, 3, 4]
    assert 'localllm_first_token_seconds_count{model="m"} 4' in lines


def test_a_name_cannot_break_out_of_its_label() -> None:
    seen = EngineMetrics("", Counters(), Occupancy(0, 0, 0, 0))
    assert '{model="a\\"b\\\\c"}' in prometheus_text({'a"b\\c': seen})


def test_the_route_serves_prometheus_text(service: RunningService) -> None:
    response = service.http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = [line for line in response.text.splitlines() if not line.startswith("#")]
    assert samples
    assert all(LINE.fullmatch(line) for line in samples)
