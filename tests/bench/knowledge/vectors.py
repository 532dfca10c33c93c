"""How long does it take to compare a question's vector with all others? Run: `python -m tests.bench.knowledge.vectors`.

Random vectors of length 1 in a store, as `app.knowledge.search` reads them: milliseconds by the clock and of a
processor, the best of five, and the most memory that it adds.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
from rich.table import Table

from app.knowledge.models import EmbedderIdentity
from app.knowledge.passages import Passage
from app.knowledge.search import ranked_by_meaning
from app.knowledge.store import FileRecord, KnowledgeStore
from tests.bench.report import show

_EMBEDDER = EmbedderIdentity("random", 0)
_PER_FILE = 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--dimensions", type=int, nargs="+", default=[384, 1024])
    options = parser.parse_args()
    table = Table("passages", "dimensions", "ms", "ms of a processor", "MB more")
    for n_dimensions in options.dimensions:
        for count in options.counts:
            table.add_row(f"{count:,}", str(n_dimensions), *_measured(count, n_dimensions))
    show(table)


def _measured(count: int, n_dimensions: int) -> tuple[str, str, str]:
    chance = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as folder, KnowledgeStore(Path(folder)) as store:
        top = store.add_folder(Path("/random"))
        store.use_embedder(_EMBEDDER)
        for begin in range(0, count, _PER_FILE):
            passages = tuple(Passage(f"{begin + number}", 0, 1) for number in range(min(_PER_FILE, count - begin)))
            store.put(top, [FileRecord(str(begin).encode(), 1, 1, passages=passages)])
            waiting = store.without_vector(begin, _PER_FILE)
            vectors = chance.normal(size=(len(waiting), n_dimensions)).astype("<f4")
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            rows = zip((passage_id for passage_id, _ in waiting), map(np.ndarray.tobytes, vectors), strict=True)
            store.put_vectors(_EMBEDDER, rows)
        n_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        clocks = []
        for _ in range(5):
            sought = chance.normal(size=n_dimensions).astype("<f4").tobytes()
            begun = time.perf_counter(), time.process_time()
            ranked_by_meaning(store, sought, 50)
            clocks.append((time.perf_counter() - begun[0], time.process_time() - begun[1]))
        more_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - n_before) / 1024
    wall_s, processor_s = (min(column) for column in zip(*clocks, strict=True))
    return f"{1000 * wall_s:.1f}", f"{1000 * processor_s:.1f}", f"{more_mb:.0f}"


if __name__ == "__main__":
    main()
