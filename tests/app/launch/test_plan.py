"""What is checked of a model before an agent is started, and what a plan holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.launch.agents import FOLDER, TargetModel, agent_named
from app.launch.plan import LaunchPlan, ModelFacts, SmallModel, first_prompt, plan_launch

URL = "http://127.0.0.1:11500"
GOOD = ModelFacts(id="coder", n_ctx=65_536, n_ctx_train=262_144, takes_tools=True)


def _plan(name: str, facts: ModelFacts, *arguments: str) -> LaunchPlan:
    agent = agent_named(name)
    assert agent is not None
    return plan_launch(agent, f"/bin/{name}", URL, facts, arguments)


@pytest.mark.parametrize(
    "name",
    ["claude", "codex", "opencode", "aider", "qwen", "cn", "copilot", "pi", "kilo", "cline", "hermes", "openclaw"],
)
def test_a_model_with_tools_and_context_passes(name: str) -> None:
    plan = _plan(name, GOOD)
    assert {check.verdict for check in plan.checks} == {"ok"}
    assert plan.target.n_ctx == 65_536


def test_the_users_arguments_follow_ours() -> None:
    assert _plan("claude", GOOD, "-p", "hi").command == (
        "/bin/claude",
        "--settings",
        f"{FOLDER}/settings.json",
        "-p",
        "hi",
    )
    assert _plan("zed", GOOD).command == ("/bin/zed", "--wait", ".")
    assert _plan("zed", GOOD, "a.py").command == ("/bin/zed", "--wait", "a.py")


def test_a_model_without_a_chat_template_is_refused() -> None:
    (refusal,) = _plan("claude", replace(GOOD, has_template=False, takes_tools=None)).of("refusal")
    assert "no chat template" in refusal.text
    assert "localllm recommend" in refusal.remedy


def test_a_template_without_tools_is_a_warning_but_not_for_an_agent_that_needs_none() -> None:
    facts = replace(GOOD, takes_tools=False)
    (warning,) = _plan("codex", facts).of("warning")
    assert "has no tools" in warning.text
    assert not _plan("aider", facts).of("warning")


def test_a_context_below_the_first_prompt_is_refused_with_the_agents_that_need_less() -> None:
    facts = replace(GOOD, n_ctx=16_384, context_reason="there is no free memory for more")
    (refusal,) = _plan("qwen", facts).of("refusal")
    assert "begins a session with about 17,000 tokens (17,000 counted with Qwen's tokenizer)" in refusal.text
    assert "coder has 16,384 tokens of context, because there is no free memory for more" in refusal.text
    assert "--kv-type q8_0" in refusal.remedy
    assert "aider, cn, pi" in refusal.remedy
    assert "qwen" not in refusal.remedy


def test_a_context_that_an_agent_would_summarize_at_once_is_refused() -> None:
    """Claude Code (2.1.332) summarizes where 33,000 tokens are left."""
    (refusal,) = _plan("claude", replace(GOOD, n_ctx=40_960)).of("refusal")
    assert "about 13,000 tokens (13,000 counted with Qwen's tokenizer) and keeps 33,000 free" in refusal.text


def test_a_context_for_the_first_prompt_but_not_for_a_session_is_a_warning() -> None:
    facts = replace(GOOD, n_ctx=49_152, n_ctx_train=49_152, context_reason="it was trained on 49,152")
    (warning,) = _plan("claude", facts).of("warning")
    assert "because it was trained on 49,152: long sessions need 65,536" in warning.text
    assert "trained on 65,536 tokens" in warning.remedy


def test_a_context_of_the_users_choice_names_the_option() -> None:
    facts = replace(GOOD, n_ctx=4096, context_reason="it was loaded with --ctx 4096")
    (refusal,) = _plan("codex", facts).of("refusal")
    assert "--ctx 32768" in refusal.remedy


def test_the_first_prompt_is_estimated_with_the_models_tokenizer_until_it_was_measured() -> None:
    agent = agent_named("codex")
    assert agent is not None
    estimated = first_prompt(agent, replace(GOOD, token_ratio=1.13))
    assert estimated is not None
    assert (estimated.n_tokens, estimated.source) == (
        5400,
        "4,800 counted with Qwen's tokenizer; this model's makes 1.13 of each",
    )
    measured = first_prompt(agent, replace(GOOD, token_ratio=1.13, n_first_measured=9731))
    assert measured is not None
    assert (measured.n_tokens, measured.source) == (9731, "measured in a run with this model")
    zed = agent_named("zed")
    assert zed is not None
    assert first_prompt(zed, GOOD) is None


def test_of_a_model_that_is_not_loaded_nothing_is_claimed() -> None:
    plan = _plan("codex", ModelFacts(id="coder"))
    assert {check.verdict for check in plan.checks} == {"unknown"}
    assert plan.target.n_ctx == 32_768, "what it would be loaded with"


def test_an_agent_that_was_never_run_says_so_and_claims_no_first_prompt() -> None:
    plan = _plan("goose", GOOD)
    (unknown,) = plan.of("unknown")
    assert "never run here" in unknown.text
    assert "https://github.com/aaif-goose/goose" in unknown.text
    assert any("The first prompt of goose was not counted" in check.text for check in plan.of("ok"))


def test_an_agent_that_refuses_a_short_context_is_not_started_with_one() -> None:
    (refusal,) = _plan("hermes", replace(GOOD, n_ctx=32_768)).of("refusal")
    assert "it refuses less than 64,000 tokens of context" in refusal.text


@pytest.mark.parametrize(("version", "is_old"), [("2.9.1", True), ("3.0.0", False), ("3.0.65", False), ("", False)])
def test_a_version_that_does_not_read_these_settings_is_a_warning(version: str, is_old: bool) -> None:
    agent = agent_named("cline")
    assert agent is not None
    plan = plan_launch(agent, "/bin/cline", URL, GOOD, version=version)
    assert bool(plan.of("warning")) == is_old
    assert not is_old or "npm install -g cline" in plan.of("warning")[0].remedy


def test_a_plan_says_who_does_the_small_tasks_and_why() -> None:
    agent = agent_named("claude")
    assert agent is not None
    small = SmallModel(TargetModel("little", 65_536), "little, which fits beside coder")
    plan = plan_launch(agent, "/bin/claude", URL, GOOD, small=small)
    assert plan.environment["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == "little"
    assert plan.environment["ANTHROPIC_MODEL"] == "coder"
    assert plan.checks[-1].text == (
        "Small tasks (web pages, titles and agents on Haiku) go to little, which fits beside coder."
    )
