"""Servers of the Model Context Protocol as servers of tools: what `mcp.json` lists, started when they are needed."""
