"""Model files: reading, validation, conversion and quantization; errors, atomic files and child processes for all rooms."""
