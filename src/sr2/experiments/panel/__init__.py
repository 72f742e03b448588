"""The panel: the same small tasks for every optimizer, the same number of gradients, one file per run."""
