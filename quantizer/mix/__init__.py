"""Which tensor gets which type: llama.cpp's rules, overrides, importance matrices, the search for the best mix."""
