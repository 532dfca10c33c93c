"""Tools that a model may use in a chat: what they are, whether they may run, and running them."""
