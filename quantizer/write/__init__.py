"""Plans of quantizations, and the job that carries them out."""
