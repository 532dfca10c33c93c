from __future__ import annotations

from math import inf

import pytest

from app.engine.request import SamplingParams
from app.service.api.openai_bodies import CompletionBody
from quantizer.errors import RequestError

LLAMA_SERVER_FIELDS = {
    "typical_p": 0.9,
    "top_n_sigma": 1.5,
    "xtc_probability": 0.5,
    "xtc_threshold": 0.2,
    "dynatemp_range": 0.5,
    "dynatemp_exponent": 1.5,
    "dry_multiplier": 0.8,
    "dry_base": 2.0,
    "dry_allowed_length": 3,
    "dry_penalty_last_n": -1,
    "mirostat": 2,
    "mirostat_tau": 4.0,
    "mirostat_eta": 0.2,
}


def _sampling(**fields: object) -> SamplingParams:
    return CompletionBody.model_validate({"prompt": "x", **fields}).completion_request().sampling


def test_the_fields_of_llama_server_reach_the_engine_under_their_names() -> None:
    assert _sampling(**LLAMA_SERVER_FIELDS) == SamplingParams(**LLAMA_SERVER_FIELDS)


def test_repeat_last_n_and_breakers_reach_the_engine() -> None:
    sampling = _sampling(repeat_last_n=-1, dry_sequence_breakers=["\n"])
    assert (sampling.penalty_last_n, sampling.dry_sequence_breakers) == (-1, ("\n",))


@pytest.mark.parametrize(
    ("biases", "pairs"),
    [
        ({"5": -100, "6": False}, ((5, -100.0), (6, -inf))),
        ([[5, 1.5], [6, False]], ((5, 1.5), (6, -inf))),
        ({"5": 0}, ((5, 0.0),)),
        ({}, ()),
        (None, ()),
    ],
)
def test_biases_come_by_token_id_as_an_object_or_as_pairs(biases: object, pairs: tuple[object, ...]) -> None:
    assert _sampling(logit_bias=biases).logit_bias == pairs


@pytest.mark.parametrize("biases", [{"5": True}, {"²": 1}, {"-1": 1}, {"99999999999": 1}])
def test_a_bias_that_means_nothing_is_refused(biases: object) -> None:
    with pytest.raises(RequestError, match="logit_bias"):
        _sampling(logit_bias=biases)
