"""The output of verbs: streamed answers, progress bars, tables, units."""
