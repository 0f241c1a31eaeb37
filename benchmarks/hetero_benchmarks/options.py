"""What options of a benchmark's command line may be; the rest is refused in one line."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path


def some_of(known: Sequence[str]) -> Callable[[str], list[str]]:
    """Return what checks a list of some of these."""

    def check(text: str) -> list[str]:
        for each in text.split(","):
            if each not in known:
                raise argparse.ArgumentTypeError(f"{each!r} is none of {', '.join(known)}")
        return text.split(",")

    return check


def number(least: float, most: float, what: str) -> Callable[[str], float]:
    """Return what checks a number."""

    def check(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
        return value

    return check


def library(text: str) -> Path:
    """Return a file that is there."""
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"{text!r} is no file")
    return Path(text).resolve()


def writable(text: str) -> Path:
    """Return a file that can be written."""
    if not os.access(Path(text).parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{Path(text).parent} cannot be written")
    return Path(text)


def folder(text: str) -> Path:
    """Return an empty folder, made if it is not there."""
    path = Path(text)
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise argparse.ArgumentTypeError(f"{text!r} is not empty")
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error.strerror}") from None
    return path
