"""Lets `python -m hetero` be the command line where no script was installed."""

from hetero.start import main

if __name__ == "__main__":
    main()
