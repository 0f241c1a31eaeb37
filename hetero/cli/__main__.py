"""Lets `python -m hetero.cli` be the command line where no script was installed."""

from hetero.cli import main

if __name__ == "__main__":
    main()
