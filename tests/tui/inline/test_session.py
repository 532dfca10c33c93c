"""A chat in the scrollback: the real command in a pseudo-terminal, over a service or a scripted remote engine."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import httpx
import psutil
import pytest

from app.chat.conversation import Message, MessageState
from app.chat.store.chat_store import ChatStore
from quantizer.system.process import python_command
from tests.patience import PATIENCE_S
from tests.quantizer.gguf_files import tiny_llama
from tests.tui.far_engine import FarEngine
from tests.tui.typist import CTRL_C, CTRL_D, PROMPT, Typist

pytestmark = pytest.mark.slow

CHAT = ("chat", "--inline")
TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}<assistant>"


@pytest.fixture
def environment(tmp_path: Path) -> Mapping[str, str]:
    """Folders that are thrown away, the fake engine and a model for it."""
    model = tiny_llama(tmp_path / "tiny.gguf", lambda writer: writer.add_chat_template(TEMPLATE))
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("LOCALLLM_", "TERM"))},
        "LOCALLLM_DATA_DIR": str(tmp_path / "data"),
        "LOCALLLM_CACHE_DIR": str(tmp_path / "cache"),
        "LOCALLLM_CONFIG": str(tmp_path / "config.toml"),
        "LOCALLLM_ENGINE": "fake",
        "LOCALLLM_MODEL": str(model),
        "LOCALLLM_PORT": "0",
    }


@pytest.fixture
def far() -> Iterator[FarEngine]:
    with FarEngine.serving() as engine:
        yield engine


def _stored(environment: Mapping[str, str]) -> list[Message]:
    """What is kept of the latest chat, in the branch that is shown."""
    with ChatStore(Path(environment["LOCALLLM_DATA_DIR"])) as store:
        chat = store.chats.latest()
        return list(store.transcripts.read(chat.id).branch) if chat else []


def _until(is_so: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.01)


def _service(typist: Typist) -> psutil.Process:
    [service] = psutil.Process(typist.process.pid).children()
    return service


def _worker(service: psutil.Process) -> psutil.Process:
    return next(child for child in service.children() if "app.engine.worker" in " ".join(child.cmdline()))


def _n_running(service: psutil.Process) -> int:
    [port] = {end.laddr.port for end in service.net_connections("tcp") if end.status == psutil.CONN_LISTEN}
    status = httpx.get(f"http://127.0.0.1:{port}/api/localllm/status", trust_env=False).json()
    n_running: int = status["models"][0]["n_running"]
    return n_running


def test_questions_and_commands_of_an_unsaved_chat_leave_no_trace(environment):
    with Typist(environment, "run", "--stats") as typist:
        assert "ask a question" in typist.read_until(PROMPT)
        assert "tok/s" in typist.sends("hello")
        assert "/system TEXT" in typist.sends("/?")
        assert "Unknown command" in typist.sends("/frobnicate")
        typist.type('"""\n')
        typist.read_until("... ")
        assert "tok/s" in typist.sends('two\nlines\n"""')
        typist.type("/bye\n")
        assert typist.process.wait(timeout=PATIENCE_S) == 0
    assert _stored(environment) == []


def test_ctrl_c_at_the_prompt_says_how_to_leave(environment):
    with Typist(environment, "run") as typist:
        typist.read_until(PROMPT)
        typist.type("not sent")
        typist.read_until("not sent")  # now the line is being read
        time.sleep(0.2)  # fingers take longer: within microseconds of a key Python's readline waits for the next one
        typist.type(CTRL_C)
        assert "Ctrl-D or /bye quits." in typist.read_until(PROMPT)
        assert typist.leaves() == 0


def test_each_question_carries_the_conversation_until_a_new_one_begins(environment):
    def n_prompt_tokens() -> int:
        shown = typist.sends("hello")
        return int(shown.partition(" tokens in")[0].rpartition(" ")[2])

    with Typist(environment, "run", "--stats") as typist:
        typist.read_until(PROMPT)
        first, second = n_prompt_tokens(), n_prompt_tokens()
        assert second > first
        typist.sends("/new")
        assert n_prompt_tokens() == first
        typist.sends("/new")
        typist.sends("/system Be brief.")
        assert n_prompt_tokens() == first + len("<system>Be brief.\n")


def test_a_chat_is_saved_and_continues_the_next_time_with_its_questions_to_recall(environment, far):
    chat = (*CHAT, "--connect", far.url)
    for _ in range(2):
        far.send("Yes.")
        far.end()
    with Typist(environment, *chat) as typist:
        typist.read_until(PROMPT)
        typist.sends("hello there")
        assert typist.leaves() == 0
    first = _stored(environment)
    assert [message.role for message in first] == ["user", "assistant"]
    with Typist(environment, *chat) as typist:
        shown = typist.read_until("/new starts another chat")
        assert "hello there" in shown
        assert "2 messages" in shown
        typist.read_until(PROMPT)
        typist.type("\x10\n")  # Ctrl-P is Up on any terminal
        typist.read_until(PROMPT)
        assert typist.leaves() == 0
    assert [message.content for message in _stored(environment)][:3:2] == ["hello there", "hello there"]
    with Typist(environment, *chat, "--new") as typist:
        assert "ask a question" in typist.read_until(PROMPT)
        assert typist.leaves() == 0


def test_a_paste_of_several_lines_is_one_question(environment, far):
    with Typist(environment, *CHAT, "--connect", far.url) as typist:
        typist.read_until(PROMPT)
        typist.type("first line\nsecond line\nthe end")
        typist.read_until("the end")
        typist.type("\n")
        far.send("Yes.")
        far.end()
        typist.read_until("Yes.")
        typist.read_until(PROMPT)
    assert [message["content"] for message in far.requests[0]["messages"]] == ["first line\nsecond line\nthe end"]


def test_a_marked_paste_is_one_question_too_and_its_controls_are_nobodys(environment, far):
    with Typist({**environment, "TERM": "xterm"}, *CHAT, "--connect", far.url) as typist:
        typist.read_until(PROMPT)
        typist.type("\x1b[200~first line\nsecond \x1b]0;evil\x07line\x1b[201~")
        typist.read_until("line")
        far.send("Yes.")
        far.end()
        typist.type("\n")
        typist.read_until("Yes.")
    assert [message["content"] for message in far.requests[0]["messages"]] == ["first line\nsecond line"]
    assert "\x1b]0;evil" not in typist.shown


def test_commands_are_completed(environment, far):
    with Typist(environment, *CHAT, "--connect", far.url) as typist:
        typist.read_until(PROMPT)
        typist.type("/sy\tBe kind.\n")
        assert "System prompt: Be kind." in typist.read_until(PROMPT)


def test_ctrl_c_stops_an_answer_keeps_its_text_and_clears_a_line(environment, far):
    with Typist(environment, *CHAT, "--connect", far.url) as typist:
        typist.read_until(PROMPT)
        typist.type("not sent")
        typist.read_until("not sent")
        time.sleep(0.2)  # fingers take longer: within microseconds of a key Python's readline waits for the next one
        typist.type(CTRL_C)
        typist.read_until(PROMPT)
        typist.type("go\n")
        far.send("Half")
        typist.read_until("Half")
        typist.type(CTRL_C)
        assert "[stopped]" in typist.read_until(PROMPT)
        assert [(message.content, message.state) for message in _stored(environment)] == [
            ("go", MessageState.FINISHED),
            ("Half", MessageState.PARTIAL),
        ]
        typist.type("silence\n")
        _until(lambda: len(far.requests) == 2, "it is asked")
        typist.type(CTRL_C)
        assert "[stopped]" in typist.read_until(PROMPT)
        assert typist.leaves() == 0


def test_kill_9_in_mid_answer_leaves_what_was_shown_a_second_before(environment, far):
    with Typist(environment, *CHAT, "--connect", far.url) as typist:
        typist.read_until(PROMPT)
        typist.type("first\n")
        far.send("Whole.")
        far.end()
        typist.read_until(PROMPT)
        typist.type("second\n")
        far.send("Half")
        typist.read_until("Half")
        _until(lambda: _stored(environment)[-1].content == "Half", "the answer is kept while it is written")
        typist.process.kill()
    kept = [(message.content, message.state) for message in _stored(environment)]
    assert kept[:3] == [
        ("first", MessageState.FINISHED),
        ("Whole.", MessageState.FINISHED),
        ("second", MessageState.FINISHED),
    ]
    assert kept[3] == ("Half", MessageState.PARTIAL)


def test_a_terminal_that_closes_keeps_the_answer_so_far(environment, far):
    with Typist(environment, *CHAT, "--connect", far.url) as typist:
        typist.read_until(PROMPT)
        typist.type("go\n")
        far.send("Half")
        typist.read_until("Half")
        typist.process.send_signal(signal.SIGHUP)
        assert typist.process.wait(timeout=PATIENCE_S) == 128 + signal.SIGHUP
    assert _stored(environment)[-1].content == "Half"


def test_a_dead_worker_costs_one_answer(environment):
    with Typist(environment, *CHAT) as typist:
        typist.read_until(PROMPT)
        service = _service(typist)
        worker = _worker(service)
        worker.suspend()
        typist.type("hello\n")
        _until(lambda: _n_running(service), "the question reaches the worker")
        worker.kill()
        assert "Error: " in typist.read_until(PROMPT)
        assert "Error: " not in typist.sends("/retry")
        assert typist.leaves() == 0
    assert _stored(environment)[-1].state is MessageState.FINISHED


def test_a_lost_service_is_restarted_with_the_next_question(environment):
    with Typist(environment, *CHAT) as typist:
        typist.read_until(PROMPT)
        _service(typist).kill()
        typist.sends("hello")
        assert "Error: " not in typist.sends("/retry")
        assert typist.leaves() == 0


@pytest.mark.parametrize("plain", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_control_but_of_our_own_reaches_the_terminal(environment, far, plain):
    with Typist({**environment, "TERM": "xterm", **plain}, *CHAT, "--connect", far.url) as typist:
        typist.read_until(PROMPT)
        typist.type("go\n")
        far.send("safe\x1b[31m\x9b2J\u202etext", reasoning="hm\x1b]52;c;x\x07.")
        far.end()
        typist.read_until("text")
        typist.read_until(PROMPT)
    answer = typist.shown.rpartition("go\r\n")[2].rpartition(PROMPT)[0]
    assert "\x1b" not in answer.replace("\x1b[?2004h", "").replace("\x1b[?2004l", "")
    assert "hm]52;c;x." in answer


def test_thoughts_are_paler_where_there_are_colours(environment, far):
    with Typist({**environment, "TERM": "xterm"}, *CHAT, "--connect", far.url) as typist:
        typist.read_until(PROMPT)
        typist.type("go\n")
        far.send("Yes.", reasoning="Hm.")
        far.end()
        typist.read_until("Yes.")
    assert "\x1b[2mHm.\x1b[0m" in typist.shown


def test_nothing_is_drawn_again_in_a_narrow_terminal(environment, far):
    with Typist(environment, *CHAT, "--connect", far.url, n_columns=20) as typist:
        typist.read_until(PROMPT)
        typist.type("go\n")
        typist.read_until("reading")
        typist.type(CTRL_C)
        typist.read_until("[stopped]")
        assert "^C" not in typist.shown
        typist.read_until(PROMPT)
    assert "\r   " not in typist.shown, "a row that is overwritten"


def test_a_model_that_is_not_there_is_a_sentence_and_status_1(environment):
    with Typist(environment, *CHAT, "-m", "gone.gguf") as typist:
        assert "gone.gguf" in typist.read_until("Check the path.")
        assert typist.process.wait(timeout=PATIENCE_S) == 1


def test_ctrl_d_in_the_middle_of_several_lines_leaves(environment, far):
    with Typist(environment, *CHAT, "--connect", far.url) as typist:
        typist.read_until(PROMPT)
        typist.type('"""one\n')
        typist.read_until("... ")
        typist.type(CTRL_D)
        assert typist.process.wait(timeout=PATIENCE_S) == 0


def test_piped_text_is_a_question_to_the_chat_and_only_the_answer_is_printed(environment, far):
    def ask(question: str, *options: str) -> subprocess.CompletedProcess[str]:
        far.send("Yes.")
        far.end()
        command = python_command("tui", *CHAT, "--connect", far.url, *options)
        return subprocess.run(
            command, env=environment, input=question, capture_output=True, text=True, timeout=PATIENCE_S
        )

    done = ask("first\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Yes.\n", "")
    ask("second\n")
    assert [message["content"] for message in far.requests[1]["messages"]] == ["first", "Yes.", "second"]
    ask("third\n", "--new")
    ask("fourth\n", "--chat", "1")
    assert len(far.requests[2]["messages"]) == 1
    assert len(far.requests[3]["messages"]) == 5


def test_piped_text_that_cannot_be_answered_is_status_1_and_saved(environment, far):
    command = python_command("tui", *CHAT, "--connect", far.url, "-m", "other")
    done = subprocess.run(command, env=environment, input="hi", capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout) == (1, "")
    assert "has no model other" in done.stderr


def test_alt_enter_begins_another_line_and_tab_finishes_the_name_of_a_file(environment, far, tmp_path):
    if not _has_gnu_readline():
        pytest.skip("this Python edits lines with another library")
    (tmp_path / "notes.txt").write_text("The word is banana.")
    terminal = {**environment, "TERM": "xterm"}
    with Typist(terminal, *CHAT, "--connect", far.url, folder=tmp_path) as typist:
        typist.read_until(PROMPT)
        typist.type("Which word\x1b\ris in @no\t?")
        typist.read_until("notes.txt")
        typist.type("\n")
        far.send("Banana.")
        far.end()
        typist.read_until("Banana.")
        typist.read_until(PROMPT)
        assert typist.leaves() == 0
    asked = _stored(environment)[0]
    assert asked.content.split() == ["Which", "word", "is", "in", "@notes.txt", "?"]
    assert asked.content.startswith("Which word\n")
    assert [each.content for each in asked.attachments] == ["The word is banana."]


def test_what_is_typed_while_an_answer_runs_stays_out_of_it_and_waits_at_the_prompt(environment, far):
    with Typist(environment, *CHAT, "--connect", far.url) as typist:
        typist.read_until(PROMPT)
        typist.type("hello\n")
        far.send("Bana")
        typist.read_until("Bana")
        typist.type("typed ahead\n")
        far.send("na.")
        far.end()
        assert typist.read_until(PROMPT).startswith("na.")
        typist.read_until("typed ahead")
        _until(lambda: any("typed ahead" in str(request) for request in far.requests), "it was never asked")
        typist.type(CTRL_C)
        typist.read_until(PROMPT)
        assert typist.leaves() == 0


def _has_gnu_readline() -> bool:
    import readline

    return "libedit" not in (readline.__doc__ or "")


def test_a_terminal_echoes_again_after_the_chat_received_a_signal(environment, far):
    with Typist(environment, *CHAT, "--connect", far.url) as typist:
        typist.read_until(PROMPT)
        typist.type("hello\n")
        far.send("Half")
        typist.read_until("Half")
        assert not typist.echoes
        typist.process.send_signal(signal.SIGTERM)
        assert typist.process.wait(timeout=PATIENCE_S) == 128 + signal.SIGTERM
        assert typist.echoes
