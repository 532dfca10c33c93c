"""The verbs, one module each; imported when called."""
