"""SR2 inside other people's trainers: one file for each, imported by nobody else. `pip install 'sr2[trainers]'`."""
