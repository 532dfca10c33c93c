"""An answer from the question to its end: turns, stream, rounds of calls, and summaries of what no longer fits."""
