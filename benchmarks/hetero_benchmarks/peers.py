"""What other ways of sharing a card gave on the same jobs, to stand beside our own figures.

Throughput as a percentage of the same job alone and unlimited. HAMi-core's is against the same run;
MPS's is against another machine of the same kind, so it is good to about 3 points.
"""

from __future__ import annotations

from collections.abc import Mapping

NAMES = ("HAMi-core", "MPS")
SOURCE = (
    "HAMi-core (commit 8f3a89c, LD_PRELOAD, policy FORCE) and MPS (active thread percentage) were "
    "measured on one H200 with driver 580.159.04 and PyTorch 2.11 on 2026-11-21; MPS is ±3 points"
)

#: By job and share asked, in the order of `NAMES`.
ALONE: Mapping[tuple[str, int], tuple[str, str]] = {
    ("resnet18", 10): ("10.8", "15.5"),
    ("resnet18", 30): ("30.1", "45.3"),
    ("resnet18", 60): ("81.6", "75.6"),
    ("gemm", 10): ("86.0", "13.3"),
    ("gemm", 30): ("100.9", "41.6"),
    ("gemm", 60): ("100.2", "77.4"),
    ("small", 30): ("72.3", "85–103"),
    ("graph", 30): ("100.0", "59.2"),
}

#: The same for gemm at 60 beside resnet18 at 30, as the slowest and fastest second.
BESIDE: Mapping[tuple[str, int], tuple[str, str]] = {
    ("gemm", 60): ("51–100", "67–77"),
    ("resnet18", 30): ("0–57", "33–48"),
}

#: Microseconds a driver call took natively and under HAMi-core.
CALLS: Mapping[str, str] = {
    "initialise": "99000 → 263000",
    "launch": "2.9–3.2 → 3.0–3.1",
    "launch and synchronise": "3.8 → 8.0",
    "allocate and free 2 MiB": "55 → 55",
    "ask for free memory": "4 → 4",
}
