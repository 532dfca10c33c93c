"""Connections through the official package `mcp`; only this folder imports it."""
