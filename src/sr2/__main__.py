"""`python -m sr2`: the command line."""

import sys

from .cli import main

sys.exit(main())
