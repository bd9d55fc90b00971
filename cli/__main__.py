"""`python -m hrx.cli`, for where the console script is not on the path."""

import sys

from hrx.cli.main import main

sys.exit(main())
