"""Models: local ones, recommendations, downloads, quantization."""
