"""Checkpoints that are quantized already: what their packed tensors stand for, as plain weights.

One module a format; `methods` has the table. Everything is decided from headers and config.json, a weight's rows are
computed when they are read.
"""
