"""Which tensor gets which type: llama.cpp's recipe, overrides, importance matrices, the search for the best mix."""
