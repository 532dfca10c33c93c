"""Model files: reading, validation, conversion, quantization; errors, files and child processes for all packages."""
