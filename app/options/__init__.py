"""Each option once: the command line, settings, jobs, plans, the settings screen and the docs read its row."""
