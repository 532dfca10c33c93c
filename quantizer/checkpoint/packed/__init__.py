"""Checkpoints that are quantized already: their packed tensors as plain weights.

One module per format; `methods` has the table. Everything is decided from headers and config.json; rows of a weight are
computed when they are read.
"""
