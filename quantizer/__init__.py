"""Model files: reading, validation, conversion, quantization; errors, atomic files, child processes for all rooms."""
