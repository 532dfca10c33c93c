"""The memory of a model: weights, cache, compute buffers and auxiliary models, layer by layer."""
