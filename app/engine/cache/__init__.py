"""The KV cache: prefix sharing, eviction, and states saved in host memory and on disk."""
