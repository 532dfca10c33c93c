"""Processes and URLs of servers, and the bounds of what they send."""
