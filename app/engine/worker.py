"""The engine's process: messages in on stdin, messages out on stdout.

The main thread reads messages; the engine thread owns the model and everything native. The process isolates llama.cpp,
which aborts on many faults. Independent of HTTP and of other workers.
"""

from __future__ import annotations

import argparse
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias

from app.common.standard_streams import private_streams
from app.engine import messages
from app.engine.backend import Backend
from app.engine.embedding import EmbeddingQueue
from app.engine.fake import fake_loader
from app.engine.load.loading import LoadedEngine, LoadListener, load_model
from app.engine.load.run_history import SpeedSampler
from app.engine.loop.core import Engine, Event
from app.engine.loop.sequence import NO_LAYOUTS
from app.engine.loop.verification import OUTPUT_INTERVAL_S
from app.engine.media.chunks import MediaLayout, is_placeholder, prompt_tokens
from app.engine.media.media_queue import MediaIntake, MediaQueue, Prepared, owner_of
from app.engine.messages import Output, WorkerMessage
from app.engine.quoted import Spans
from app.engine.request import BATCH_PRIORITY, FinishReason, Request, Timings, Usage
from app.engine.side_engine import BatchEngine, SideEngine
from app.engine.speculative.project_lookup import TextCorpora
from app.engine.speech import SpeechQueue
from app.engine.tuning.tune_results import Workload, describe_drafts
from app.protocol.errors import RequestError
from app.protocol.status import Occupancy
from app.settings.settings import load_settings
from quantizer.system.errors import ErrorInfo, UserError
from quantizer.system.faults import reported_faults, system_fault
from quantizer.system.memory_limit import use_one_arena

MAX_OUTPUT_INTERVAL_S = 0.1  # longer is seen
BATCH_OUTPUT_INTERVAL_S = 1.0  # of answers that nobody reads before their end
STACK_BYTES = 256 << 20  # llama.cpp's tokenizers recurse on long runs of one character
PROGRESS_INTERVAL_S = 0.1
STOP_TIMEOUT_S = 8.0
SAVE_TIMEOUT_S = 3.0
IDLE_S = 2.0  # without messages before the worker saves sequences
DETERMINISTIC_IDLE_S = 60.0  # before it gives the memory of deterministic answers back, which no plan has
STALLED_S = 0.5  # waiting for embeddings before time limits of requests are looked at

_Received: TypeAlias = WorkerMessage | Prepared | Literal["embedded"] | None  # None: no more will come

LoadModel = Callable[[messages.Load, LoadListener], LoadedEngine]


class Worker:
    """Server of one model's messages until `read` ends. `load_model` loads the model of the Load message."""

    def __init__(self, read: Callable[[int], bytes], write: Callable[[bytes], object], load_model: LoadModel) -> None:
        self._read = read
        self._write = write
        self._write_lock = threading.Lock()
        self._load_model = load_model
        self._inbox: queue.SimpleQueue[_Received] = queue.SimpleQueue()
        self._engine: Engine | None = None
        self._batches = BatchEngine()
        self._deterministic = SideEngine()
        self._speech = SpeechQueue(None, self.send)
        self._media: MediaQueue | None = None
        self._intake = MediaIntake(None, self._inbox.put)
        self._speed_sampler = SpeedSampler()
        self._outbox = Outbox(self.send)
        self._next_progress_s = 0.0
        self._is_deterministic = False  # requests that do not say it
        self.is_stopping = False

    def send(self, *sent: WorkerMessage) -> None:
        with self._write_lock:
            self._write(b"".join(map(messages.encode, sent)))

    def _report_progress(self, fraction: float) -> bool:
        """Send the progress of loading, ten times a second at most, and its end; return False to stop the load."""
        now_s = time.monotonic()
        if now_s >= self._next_progress_s or fraction >= 1:
            self._next_progress_s = now_s + PROGRESS_INTERVAL_S
            self.send(messages.LoadProgress(fraction))
        return not self.is_stopping

    def read_messages(self) -> None:
        """Pass messages to the engine thread until the service closes the pipe; handle urgent ones at once."""
        while (message := messages.read_message(self._read)) is not None:
            if isinstance(message, messages.Load):
                self._is_deterministic = message.config.is_deterministic
            if isinstance(message, Request) and message.is_deterministic is None:
                message = replace(message, is_deterministic=self._is_deterministic)
            engine = self._engine  # what cannot wait for the step that is running
            if engine is not None and isinstance(message, messages.GetMetrics):
                self.send(self._metrics(message.call_id, engine))
                continue
            if engine is not None and isinstance(message, messages.Abort):
                engine.abort(message.request_id)
                self._batches.abort(message.request_id)
                self._deterministic.abort(message.request_id)
                self._speech.interrupt(message.request_id)
            if engine is not None and isinstance(message, Request) and message.priority > BATCH_PRIORITY:
                self._batches.interrupt()
                if not (message.media or message.is_deterministic):  # media are encoded first
                    engine.announce(message)
            self._inbox.put(message)
        self.is_stopping = True
        self._inbox.put(None)

    def _metrics(self, call_id: str, engine: Engine) -> messages.EngineMetrics:
        engines = (engine, self._batches, self._deterministic)
        found = [each.occupancy for each in engines]
        occupancy = Occupancy(
            sum(each.n_running for each in found),
            sum(each.n_waiting for each in found),
            sum(each.n_cells_used for each in found),
            sum(each.n_cells for each in found),
            engine.occupancy.saved_bytes,
        )
        running = tuple(progress for each in engines for progress in each.running)
        return messages.EngineMetrics(call_id, engine.counters, occupancy, running, engine.thread_use)

    def run_engine(self) -> None:
        """Load the model of the first message and answer until the inbox ends. Runs on the engine thread."""
        load = self._inbox.get()
        if not isinstance(load, messages.Load):
            return
        listener = LoadListener(
            on_progress=self._report_progress,
            on_notice=lambda text: self.send(messages.Notice(text)),
            on_plan=lambda plan: self.send(messages.Planned(plan)),
        )
        try:
            with reported_faults("engine process"):
                loaded = self._load_model(load, listener)
        except UserError as error:
            self.send(messages.Failed("", ErrorInfo.of(error)))
            return
        with loaded.owned:
            engine, embeddings = self._start(load, loaded)
            while self._handle_inbox(engine, embeddings, loaded):
                if self._step_batches(engine):
                    embeddings.step()
                    continue
                self._speech.step()
                may_wait = engine.is_decoding and self._deterministic.is_decoding and embeddings.is_idle
                if engine.is_idle:
                    engine.follow_load()
                else:
                    engine.step()
                self._deterministic.step()  # a batch of its own, in turns with those of the others
                if may_wait:
                    self._outbox.flush_if_due()
                else:  # so that the next long step delays no text, and a first token comes at once
                    self._outbox.flush()
                # After the text is sent: saving takes 1 to 50 ms, which nobody should wait for.
                engine.save_checkpoints()
                embeddings.step()
            engine.close()
            self._batches.close()
            self._deterministic.close()
            self._outbox.flush()
            self._speed_sampler.flush()
            self._record_use(engine, loaded)
            # Finished sequences are saved for the next start, as far as time allows: whoever stops the service waits.
            deadline_s = time.monotonic() + SAVE_TIMEOUT_S
            while time.monotonic() < deadline_s and engine.save_idle_sequence():
                pass

    def _start(self, load: messages.Load, loaded: LoadedEngine) -> tuple[Engine, EmbeddingQueue]:
        """Return the engine and the queue of embeddings over the loaded model, after Ready is sent."""
        self._speed_sampler = SpeedSampler(loaded.record_speed)
        if loaded.new_media_queue is not None:
            self._media = loaded.new_media_queue(lambda: self._inbox.put("embedded"))
            loaded.owned.callback(self._media.close)
            self._intake = MediaIntake(self._media, self._inbox.put)
        corpora = None
        if load.config.corpora_folder:
            corpora = TextCorpora(
                Path(load.config.corpora_folder), loaded.backend.tokenize, lambda text: self.send(messages.Notice(text))
            )
            loaded.owned.callback(corpora.close)
        self._engine = Engine(
            loaded.backend,
            self._emit,
            loaded.store,
            loaded.step_cost,
            loaded.draft_sources,
            self._media,
            shifts_context=load.config.context_shift,
            threads=loaded.threads,
            prompt_cost=loaded.prompt_cost,
            busy_clock=time.process_time if loaded.backend.facts.is_on_host else lambda: None,
            corpora=corpora,
        )
        self._batches = self._batch_engine(load, loaded, self._engine)
        self._deterministic = self._deterministic_engine(load, loaded, self._engine)
        self._speech = SpeechQueue(loaded.speaker, self.send)
        embeddings = EmbeddingQueue(loaded.backend, loaded.new_embedder, self.send)
        loaded.owned.callback(embeddings.close)
        if loaded.threads is not None:
            loaded.threads.on_change(lambda _n_threads: self._speed_sampler.change_threads())
            loaded.threads.on_change(embeddings.set_threads)
            loaded.threads.on_change(self._batches.set_threads)
            if loaded.backend.facts.is_on_host:  # fused attention, which GPUs have, sums by thread
                loaded.threads.on_change(self._deterministic.set_threads)
        drafts = describe_drafts(tuple(self._engine.counters.drafts), has_draft_model=bool(load.config.draft_path))
        n_batch_answers = 0 if loaded.new_batch_backend is None else loaded.n_batch_answers
        facts = replace(loaded.backend.facts, n_batch_answers=n_batch_answers)
        self.send(messages.Ready(facts, (*loaded.settings, drafts)))
        return self._engine, embeddings

    def _batch_engine(self, load: messages.Load, loaded: LoadedEngine, engine: Engine) -> BatchEngine:
        def new_engine(backend: Backend) -> Engine:
            return Engine(
                backend,
                self._emit,
                step_cost=loaded.new_batch_cost(),
                shifts_context=load.config.context_shift,
                prompt_cost=loaded.prompt_cost,
                counters=engine.counters,
                busy_clock=time.process_time if backend.facts.is_on_host else lambda: None,
            )

        batches = BatchEngine(loaded.new_batch_backend, new_engine, lambda text: self.send(messages.Notice(text)))
        loaded.owned.callback(batches.close)
        return batches

    def _deterministic_engine(self, load: messages.Load, loaded: LoadedEngine, engine: Engine) -> SideEngine:
        def new_engine(backend: Backend) -> Engine:
            return Engine(
                backend,
                self._emit,
                media=self._media,
                shifts_context=load.config.context_shift,
                prompt_cost=loaded.prompt_cost,
                counters=engine.counters,
                busy_clock=time.process_time if backend.facts.is_on_host else lambda: None,
                is_deterministic=True,
            )

        side_engine = SideEngine(loaded.new_deterministic_backend, new_engine)
        loaded.owned.callback(side_engine.close)
        return side_engine

    def _step_batches(self, engine: Engine) -> bool:
        """Compute a step of the batches if no other request can be computed; return whether one was."""
        batches = self._batches
        if batches.is_idle:
            return False
        if not ((engine.is_idle or engine.is_stalled) and self._deterministic.is_idle):
            batches.end_aborted()
            return False
        engine.follow_load()
        batches.step()
        self._outbox.flush_ended(BATCH_OUTPUT_INTERVAL_S)
        return not engine.is_stalled

    def _record_use(self, engine: Engine, loaded: LoadedEngine) -> None:
        """Record what the model was used for, by which its settings are tuned."""
        counters = engine.counters
        if n_decode := counters.n_decode_tokens:
            workload = Workload(
                counters.n_prefill_tokens,
                counters.n_answer_step_tokens or n_decode,
                counters.depth_sum // n_decode,
                counters.n_answer_step_tokens / max(1, counters.n_answer_steps) or 1.0,
            )
            if loaded.threads is not None:
                loaded.threads.restore()  # the costs that the next load begins with
            loaded.record_use(workload, loaded.step_cost.measured)
            loaded.record_drafts(engine.draft_outcomes)

    def _emit(self, event: Event) -> None:
        self._outbox.add(event)
        if not isinstance(event, messages.Output):
            self._intake.end(event.request_id)
        if isinstance(event, messages.Finished) and self._engine is not None:
            self._speed_sampler.end(event, self._engine.occupancy.n_cells_used)

    def _handle_inbox(self, engine: Engine, embeddings: EmbeddingQueue, loaded: LoadedEngine) -> bool:
        """Handle the received messages, waiting while there is nothing to compute. Return False at the end."""
        received: list[_Received] = []
        deterministic = self._deterministic
        may_wait = deterministic.is_idle or deterministic.is_stalled
        is_idle = embeddings.is_idle and self._speech.is_idle and self._batches.is_idle and may_wait
        if is_idle and (engine.is_stalled or (engine.is_idle and deterministic.is_stalled)):
            with suppress(queue.Empty):
                received.append(self._inbox.get(timeout=STALLED_S))
        elif engine.is_idle and is_idle:
            with nullcontext() if loaded.store is None else loaded.store.writing():
                received.append(self._wait_for_message(engine))
        while not self._inbox.empty():
            received.append(self._inbox.get())
        if received and not engine.is_idle:
            self._outbox.flush()  # a message may begin a long step, for which no text should wait
        for message in received:
            if message is None:
                return False
            self._handle(message, engine, embeddings, loaded.backend)
        return True

    def _wait_for_message(self, engine: Engine) -> _Received:
        """Return the next message; while idle, store speed samples, save sequences and prepare checkpoints."""
        while True:
            try:
                return self._inbox.get(timeout=IDLE_S)
            except queue.Empty:
                self._speed_sampler.flush()
                self._batches.close()
                if not engine.save_idle_sequence():
                    engine.prepare_checkpoints()
                    break
        try:
            return self._inbox.get(timeout=DETERMINISTIC_IDLE_S)
        except queue.Empty:
            self._deterministic.close()
            return self._inbox.get()

    def _handle(self, message: _Received, engine: Engine, embeddings: EmbeddingQueue, backend: Backend) -> None:
        if self._handle_media(message, engine, backend):
            return
        match message:
            case Request() | messages.Speak():
                self._submit(message, engine, embeddings)
            case messages.Abort(request_id):
                self._abort(request_id, engine, embeddings)
            case messages.EndThought(request_id):
                for each in (engine, self._batches, self._deterministic):
                    each.end_thought(request_id)
            case messages.Embed() | messages.Rerank():
                self._speed_sampler.disturb()
                embeddings.submit(message)
            case messages.ForgetConversations():
                self._forget(message, engine)
            case messages.Tokenize(call_id):
                self._or_fail(call_id, lambda: self.send(_tokenized(backend, message)))
            case messages.Detokenize(call_id, tokens):
                self._or_fail(call_id, lambda: self.send(messages.Detokenized(call_id, _text(backend, tokens))))
            case _:
                raise ValueError(f"unexpected message {type(message).__name__}")

    def _forget(self, message: messages.ForgetConversations, engine: Engine) -> None:
        for each in (engine, self._batches, self._deterministic):
            each.forget(message.conversations)
        if self._media is not None:
            self._media.forget(message.conversations)
        self.send(messages.Forgotten(message.call_id))

    def _submit(self, request: Request | messages.Speak, engine: Engine, embeddings: EmbeddingQueue) -> None:
        if isinstance(request, messages.Speak):
            self._speech.submit(request)
            return
        if request.is_deterministic:
            if request.reads_ahead:  # into cells that it does not use
                self._outbox.add(messages.Finished(request.request_id, FinishReason.ABORTED, Usage(), Timings()))
                return
            self._speed_sampler.disturb()
            self._or_fail(request.request_id, lambda: self._deterministic.submit(request))
            return
        if self._batches.takes(request):
            return
        is_alone = engine.is_idle and embeddings.is_idle and self._deterministic.is_idle
        use = engine.thread_use
        self._speed_sampler.begin(request, is_alone=is_alone, n_threads=None if use is None else use.n_threads)
        engine.submit(request)

    def _abort(self, request_id: str, engine: Engine, embeddings: EmbeddingQueue) -> None:
        if self._intake.abort(request_id):
            self._outbox.add(messages.Finished(request_id, FinishReason.ABORTED, Usage(), Timings()))
        engine.abort(request_id)  # again: the request may have arrived after the first call
        self._batches.abort(request_id)
        self._deterministic.abort(request_id)
        self._speech.abort(request_id)
        embeddings.abort(request_id)

    def _handle_media(self, message: _Received, engine: Engine, backend: Backend) -> bool:
        """Handle what is about pictures and sounds; return whether `message` is."""
        match message:
            case Request(media=(_, *_)) | messages.Tokenize(media=(_, *_)):
                self._speed_sampler.disturb()
                self._or_fail(owner_of(message), lambda: self._intake.begin(message))
            case Prepared():
                self._or_fail(owner_of(message.message), lambda: self._handle_prepared(message, engine, backend))
            case "embedded":
                pass  # the next step finds them
            case _:
                return False
        return True

    def _handle_prepared(self, prepared: Prepared, engine: Engine, backend: Backend) -> None:
        """Submit a request, or answer a call, whose media are laid out. Raises the error of one that cannot be."""
        layouts, message = self._intake.layouts(prepared), prepared.message
        if layouts is None:
            return
        if isinstance(message, Request):
            (self._deterministic if message.is_deterministic else engine).submit(message, layouts)
            return
        self._intake.end(message.call_id)
        self.send(_tokenized(backend, message, layouts))

    def _or_fail(self, request_id: str, action: Callable[[], None]) -> None:
        """Run `action`; its UserError becomes the failure of a request or call."""
        try:
            action()
        except UserError as error:
            self._intake.end(request_id)
            self.send(messages.Failed(request_id, ErrorInfo.of(error)))


class Outbox:
    """The events since the last `send`, which gets all of them, in order for each request. A message costs the service
    and its client about half a millisecond of a processor, which a model that computes on all of them waits for: 6 % of
    a step of LFM2 350M. So the outputs of several short steps are sent as one."""

    def __init__(self, send: Callable[..., None], clock: Callable[[], float] = time.perf_counter) -> None:
        self._send = send
        self._clock = clock
        self._outputs: dict[str, Output] = {}  # by request
        self._ends: list[Event] = []
        self._sent_s = clock()

    def add(self, event: Event) -> None:
        """Add an event; the text of a request is appended to what waits."""
        if not isinstance(event, Output):
            self._ends.append(event)
            return
        waiting = self._outputs.get(event.request_id)
        if waiting is not None:
            event = replace(
                event,
                text=waiting.text + event.text,
                logprobs=waiting.logprobs + event.logprobs,
                tokens=waiting.tokens + event.tokens,
            )
        self._outputs[event.request_id] = event

    def flush_if_due(self) -> None:
        """Send all events if an answer has ended, or enough time has passed for as many answers as have new text."""
        interval_s = min(MAX_OUTPUT_INTERVAL_S, OUTPUT_INTERVAL_S * len(self._outputs))
        if self._ends or self._clock() - self._sent_s >= interval_s:
            self.flush()

    def flush_ended(self, interval_s: float) -> None:
        """Send the answers that have ended, and the text of the others if that was last done `interval_s` ago."""
        if self._clock() - self._sent_s >= interval_s:
            self.flush()
        elif self._ends:
            ends, self._ends = self._ends, []
            texts = (self._outputs.pop(event.request_id, None) for event in ends)
            self._send(*(text for text in texts if text is not None), *ends)

    def flush(self) -> None:
        """Send all events; the end of an answer follows its text."""
        events = [*self._outputs.values(), *self._ends]
        if events:
            self._outputs, self._ends = {}, []
            self._send(*events)
        self._sent_s = self._clock()


def _tokenized(
    backend: Backend, message: messages.Tokenize, layouts: Mapping[str, MediaLayout] = NO_LAYOUTS
) -> messages.Tokenized:
    def tokenize(text: str, is_first: bool, _quoted: Spans) -> list[int]:
        return backend.tokenize(text, message.add_special and is_first, message.parse_special)

    tokens = tuple(prompt_tokens(message.text, layouts, tokenize).tokens)
    pieces = (b"" if is_placeholder(token) else backend.label(token) for token in tokens)
    return messages.Tokenized(message.call_id, tokens, tuple(pieces) if message.with_pieces else ())


def _text(backend: Backend, tokens: Sequence[int]) -> str:
    if any(not 0 <= token < backend.facts.n_vocab for token in tokens):
        raise RequestError("A token id is not in the vocabulary.", "Use ids from /tokenize of the same model.")
    # Special tokens by their text, as llama-server writes them: the text has the same tokens again.
    return b"".join(backend.piece(token) or backend.label(token) for token in tokens).decode("utf-8", "replace")


def load_llama(load: messages.Load, listener: LoadListener) -> LoadedEngine:
    return load_model(Path(load.model_path), load.config, load_settings().cache_dir, listener)


def _write_all(pipe: BinaryIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[pipe.write(view) :]


def main() -> None:
    """Serve messages on stdin and stdout; the process ends with its stdin or its engine."""
    parser = argparse.ArgumentParser(prog="localllm engine worker")
    parser.add_argument("--fake", action="store_true", help="use a deterministic model without native code")
    parser.add_argument("--fake-step-ms", type=float, default=0.0)
    parser.add_argument("--fake-load-ms", type=float, default=0.0)
    parser.add_argument("--fake-unfit", action="store_true", help="behave like a model that fits only partly")
    options = parser.parse_args()
    use_one_arena()  # glibc's arenas let an engine grow by 0.4 MiB a minute under load, one does not
    os.environ["GGML_NO_BACKTRACE"] = "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the user interface handles Ctrl-C
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    stdin, stdout = private_streams()
    messages_in, messages_out = os.fdopen(stdin, "rb"), os.fdopen(stdout, "wb", buffering=0)
    step_s, load_s = options.fake_step_ms / 1000, options.fake_load_ms / 1000
    load_model = fake_loader(step_s, load_s, is_unfit=options.fake_unfit) if options.fake else load_llama
    worker = Worker(messages_in.read, lambda data: _write_all(messages_out, data), load_model)
    threading.stack_size(STACK_BYTES)
    engine = threading.Thread(target=_run_to_exit, args=(worker,), daemon=True)
    engine.start()
    threading.stack_size(0)
    worker.read_messages()
    engine.join(STOP_TIMEOUT_S)


def _run_to_exit(worker: Worker) -> None:
    """Run the engine and end the process with it, since the main thread may be blocked reading."""
    status = 1
    try:
        worker.run_engine()
        status = 0
    except BrokenPipeError:
        pass  # the service ended
    except BaseException as error:
        if fault := system_fault("engine process", error):
            print(fault, file=sys.stderr)  # the service quotes it
        else:
            sys.excepthook(*sys.exc_info())
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
