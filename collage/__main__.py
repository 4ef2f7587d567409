"""`python -m collage`: the command line."""

import sys

from collage.cli import main

if __name__ == "__main__":
    sys.exit(main())
