"""What `mcp.json` lists: the file, its entries, and those of other programs."""
