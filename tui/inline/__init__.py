"""A chat in the scrollback of the terminal: lines are read and printed, nothing is drawn over. No widgets here."""
