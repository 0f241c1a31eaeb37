"""Runs the isolation benchmark from a checkout: the same as `hetero bench isolation`."""

import sys

from hetero_benchmarks.isolation import main

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
