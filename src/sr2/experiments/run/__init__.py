"""A run: its configuration, what is built from it, the training, and what is kept on disk."""
