"""Engines: one worker process for a loaded file, loaded, shared, evicted and restarted."""
