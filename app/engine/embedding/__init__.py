"""Embeddings and ranking: the embedder interface, and the queue of texts that are computed between steps."""
