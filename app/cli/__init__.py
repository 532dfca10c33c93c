"""The command line: one module per verb or family of verbs; parse, call, print."""
