"""`python -m makeway`."""

import sys

from makeway.cli.main import main

sys.exit(main())
