"""`python -m mixsage` is the command `mixsage`."""

import sys

from mixsage.cli import main

if __name__ == "__main__":
    sys.exit(main())
