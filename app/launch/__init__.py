"""Coding agents: what each needs, and how it is started against the service."""
