"""The script that `bench.backends` runs once for each candidate."""

import sys

from bench.backends import candidate

if __name__ == "__main__":
    sys.exit(candidate())
