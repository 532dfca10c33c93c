"""Every value that crosses a process, declared once as frozen dataclasses with one codec."""
