"""Pulls: a model or a checkpoint brought from the hub into the library."""
