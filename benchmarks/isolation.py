"""Runs the isolation benchmark from a checkout: the same as `hetero bench isolation`."""

import sys

from hetero.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["bench", "isolation"]
    main()
