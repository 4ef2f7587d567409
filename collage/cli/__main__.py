"""`python -m collage.cli`: the command line."""

import sys

from collage.cli import main

if __name__ == "__main__":
    sys.exit(main())
