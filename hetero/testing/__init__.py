"""For authors of vendors and limiters: contract tests, an in-memory vendor, and `rack()`.

Imports `hetero.model`, `hetero.plugin` and `hetero.registry`. Start with `contract`, the tests of
every vendor; `isolation` has those of every limiter. pytest runs them and is not imported.
"""

from hetero.testing.contract import VendorContract
from hetero.testing.isolation import IsolationContract
from hetero.testing.memory_vendor import MemoryVendor, rack

__all__ = ["IsolationContract", "MemoryVendor", "VendorContract", "rack"]
