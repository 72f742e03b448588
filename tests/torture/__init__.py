"""Minutes long, run by `make torture`; what they found is in docs/reliability.md."""
