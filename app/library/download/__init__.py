"""Bringing a file from a server to the disk, whatever the link, the server and this machine do meanwhile."""
