"""Speculative decoding: where drafts come from, and how many of their tokens to verify."""
