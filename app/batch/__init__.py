"""Offline batches: a file of requests, answered in the order that shares most, into a file of answers."""
