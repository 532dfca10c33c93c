"""The tools of a chat on the screen: questions before a call, calls and results, and what is switched on."""
