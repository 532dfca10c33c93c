"""Placements of layers on devices: the search, the assessment, and llama.cpp's parameters for them."""
