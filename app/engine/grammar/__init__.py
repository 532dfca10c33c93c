"""JSON schema → GBNF grammar, and the tokens that a grammar can allow."""
