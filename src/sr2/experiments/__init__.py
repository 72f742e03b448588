"""The paper's experiments and the user's own runs. Nothing of the library imports this."""
