"""Contexts of draft heads, and a backend with one."""
