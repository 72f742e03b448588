"""The experiments of the paper: its cells, their settings, its published numbers."""
