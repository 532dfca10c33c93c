"""llama-server's dialect: /completion, /infill, /tokenize, /props and what else its clients call."""
