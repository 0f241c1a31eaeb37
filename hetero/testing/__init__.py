"""For those who write a vendor or a limiter: their contracts, a vendor in memory, and `rack()`.

Imports `hetero.model`, `hetero.plugin` and `hetero.registry`. Start with `contract`, which shows
what every vendor promises; `isolation` does of every limiter. pytest runs them and is not imported.
"""

from hetero.testing.contract import VendorContract
from hetero.testing.isolation import IsolationContract
from hetero.testing.memory_vendor import MemoryVendor, rack

__all__ = ["IsolationContract", "MemoryVendor", "VendorContract", "rack"]
