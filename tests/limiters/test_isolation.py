"""The contract of limiters, kept by each of ours in front of its driver on a simulated card."""

import re
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import hetero_simulator
import pytest
from elftools.elf.elffile import ELFFile
from tenancy import LIMITER, mutated

from hetero.testing import IsolationContract

HERE, LIMITERS = Path(__file__).parent, LIMITER.parents[2]
RACK = """
[device]
vendor = {vendor}
model = {model}
memory = 8 GiB
compute = 9.0
multiprocessors = 64
uuid = {uuid}

[kernel spin]
{kernel}
"""
UUID, UNIQUE_ID = "GPU-11111111-2222-3333-4444-555555555555", "GPU-423592d2d74e6a1b"


class OnACard(IsolationContract):
    """The contract on a simulated card of its own."""

    driver = HERE / "calls_cuda.py"
    model: ClassVar[str] = "Card"
    uuid: ClassVar[str] = UUID
    kernel: ClassVar[str] = "per_arg0 = 1 ns"
    clock = hetero_simulator.clock()
    #: Of the driver: its library's name, and what its functions begin with.
    calls: ClassVar[str] = "libcuda.so.1 cu"
    #: The node's settings: cards that vendors would cut are shared by a limiter.
    settings: ClassVar[str] = ""

    @pytest.fixture(autouse=True)
    def simulated(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.simulate(tmp_path, monkeypatch)

    def simulate(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        rack = tmp_path / "contract.rack"
        card = RACK.format(vendor=self.vendor, model=self.model, uuid=self.uuid, kernel=self.kernel)
        rack.write_text(card)
        monkeypatch.setenv("HETERO_RACK", str(rack))
        monkeypatch.setenv("PYTHONPATH", str(HERE))
        monkeypatch.setenv("CALLS", self.calls)
        settings = tmp_path / "node.toml"
        settings.write_text(self.settings)
        monkeypatch.setenv("HETERO_CONFIG", str(settings))


class TestCuda(OnACard):
    vendor = "nvidia"


class TestMusa(OnACard):
    vendor = "mthreads"
    uuid = "11111111-2222-3333-4444-555555555555"  # nothing in front, unlike others'
    calls = "libmusa.so.1 mu"
    settings = '[cards]\nsoft = ["mthreads"]'


#: What came after CUDA 10.2, whose interfaces CoreX has: all names that begin so.
LACKED = (
    *("cuMemPool", "cuMemAllocAsync", "cuMemAllocFromPoolAsync", "cuMemFreeAsync", "cuGreenCtx"),
    *("cuDeviceGetDefaultMemPool", "cuDeviceGetMemPool", "cuDeviceSetMemPool", "cuGetProcAddress"),
    *("cuDeviceGetGraphMem", "cuDeviceGraphMemTrim", "cuGraphAddMem", "cuGraphMem"),
    *("cuGraphUpload", "cuGraphInstantiateWith", "cuLibrary", "cuKernel", "cuLaunchKernelEx"),
    *("cuDeviceGetUuid_v2", "cuMemMapArrayAsync", "cuMemPrefetchAsync_v2", "cuCtxCreate_v3"),
)


class TestCorex(OnACard):
    """What a driver lacks is found by its symbols: nobody says whose driver it is."""

    vendor = "iluvatar"

    def simulate(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().simulate(tmp_path, monkeypatch)
        whole = (hetero_simulator.fake_drivers() / "iluvatar/libcuda.so.1").read_bytes()
        # A name of the same length that no hash leads to.
        names = b"|".join(re.escape(name.encode()) for name in LACKED)
        path = tmp_path / "libcuda.so.1"
        path.write_bytes(re.sub(rb"(?<=\0)(?=(?:%s)\w*\0)c" % names, b"x", whole))
        monkeypatch.setenv("CALLS_PATH", str(path))
        self.drivers = hetero_simulator.fake_drivers() / "iluvatar/libcuda.so.1", path

    def test_what_it_lacks_is_not_there(self) -> None:
        """Nothing else is missing, and each of the names above leaves something out."""
        whole, less = self.drivers
        with whole.open("rb") as file:
            symbols = ELFFile(file).get_section_by_name(".dynsym").iter_symbols()
            names = [s.name for s in symbols if s.entry.st_shndx != "SHN_UNDEF"]
        command = (sys.executable, "-c", NOT_FOUND, less, *names)
        gone = subprocess.check_output(command, text=True, timeout=60).split()
        assert [name for name in names if name.startswith(LACKED)] == gone
        assert [] == [each for each in LACKED if not any(name.startswith(each) for name in gone)]


#: Print those of some names that a driver does not have.
NOT_FOUND = """
import ctypes, sys
driver = ctypes.CDLL(sys.argv[1])
print(*(name for name in sys.argv[2:] if not hasattr(driver, name)))
"""


@pytest.mark.hip
class TestHip(OnACard):
    vendor = "amd"
    driver = HERE / "calls_hip.py"
    uuid = UNIQUE_ID
    calls = "libamdhip64.so.5 hip"
    kernel = "time = 0 us\nper_arg0 = 1 us"
    virtual_seconds = 3.5  # the runtime's threads look at their queues all the time


class TestHip7(OnACard):
    """A simulated runtime of the names that came after Debian's, with books of its own."""

    vendor = "amd"
    driver = HERE / "calls_hip.py"
    uuid = UNIQUE_ID
    calls = "libamdhip64.so.7 hip"
    kernel = "time = 0 us\nper_arg0 = 1 us"

    def simulate(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().simulate(tmp_path, monkeypatch)
        name = self.calls.split()[0]
        path = hetero_simulator.fake_drivers() / f"hip{name[-1]}" / name
        monkeypatch.setenv("CALLS_PATH", str(path))


class OfHip6(TestHip7):
    """The same, less what came with 7.0."""

    calls = "libamdhip64.so.6 hip"


class OfHygon(TestHip):
    """AMD's runtime by Hygon's name, on a card that Hygon's tools would cut."""

    vendor = "hygon"
    model = "K100_AI"
    uuid = "7100f95cee823041"
    calls = "libgalaxyhip.so.5 hip"
    settings = '[cards]\nsoft = ["hygon"]'


class TestAscend(OnACard):
    """CANN 8's shape: what acl calls of the runtime passes symbols."""

    vendor = "ascend"
    driver = HERE / "calls_acl.py"
    model = "910B3\ncore = 20"
    uuid = "11111111 22222222 33333333 44444444 55555555"
    calls = "acl"
    kernel = "time = 0 us\nper_arg0 = 1 us"
    settings = '[cards]\nsoft = ["ascend"]'
    shape: ClassVar[str] = "cann8"
    virtual_seconds = 3

    def simulate(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().simulate(tmp_path, monkeypatch)
        monkeypatch.setenv("LD_LIBRARY_PATH", str(hetero_simulator.fake_drivers() / self.shape))


class TestAscendBelow(TestAscend):
    """CANN 9's, whose acl is compiled into the runtime; launches are made by the latter."""

    calls = "rt"
    shape = "cann9"


#: What does not depend on how a runtime was made is tried on one name alone.
OF_OTHERS = (
    "test_memory_is_refused_at_the_limit_and_not_below",
    "test_memory_of_a_killed_process_is_the_grants_again",
    "test_every_way_to_the_driver_leads_to_the_limiter",
)


@pytest.mark.parametrize(
    "others", [pytest.param(OfHygon, marks=pytest.mark.hip), OfHip6], ids=["hygon", "hip6"]
)
@pytest.mark.parametrize("promise", OF_OTHERS)
def test_the_contract_holds_by_other_names_of_the_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, promise: str, others: type[OnACard]
) -> None:
    card = others()
    card.simulate(tmp_path, monkeypatch)
    getattr(card, promise)()


#: By the rows of the table in docs/vendors.md.
TRIED: dict[str, type[OnACard]] = {
    "CUDA on NVIDIA's cards": TestCuda,
    "HIP on AMD's": TestHip,
    "HIP on Hygon's": OfHygon,
    "CUDA on Iluvatar's": TestCorex,
    "MUSA on Moore Threads'": TestMusa,
    "HIP's names since 5.3": TestHip7,
    "acl on Ascend's, CANN 8's shape": TestAscend,
    "acl on Ascend's, CANN 9's shape": TestAscendBelow,
}


def test_the_page_of_vendors_says_where_each_limiter_was_tried() -> None:
    """What is in the contract is in the column of what the contract runs on."""
    text = (HERE.parents[1] / "docs/vendors.md").read_text()
    (table,) = re.findall(r"^\| limiter \|.*\n(?:\|.*\n)+", text, re.MULTILINE)
    head, _, *rows = (
        [cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()
    )
    cells = {row[0]: dict(zip(head, row, strict=True)) for row in rows}
    assert cells.keys() == TRIED.keys()
    for name, contract in TRIED.items():
        marks = {mark.name for mark in getattr(contract, "pytestmark", ())}
        column = "vendor's own code" if "hip" in marks else "our simulation"
        assert "memory, time, kill" == cells[name][column].split(":")[0], name
        others = {"vendor's own code", "our simulation"} - {column}
        assert [""] == [cells[name][other] for other in others], name
    tried = {*OnACard.__subclasses__(), *TestHip.__subclasses__()}
    assert tried <= set(TRIED.values())


#: What is left out of a shim, and the promise that is then broken.
LIMIT = "test_memory_is_refused_at_the_limit_and_not_below"
FREED = "test_memory_that_is_freed_is_the_grants_again"
SHARES = "test_two_tenants_have_30_and_60_of_a_card"
#: What each promise says when it is broken, and not what its programs say when they cannot run.
SAID = {
    LIMIT: "^expected .*, and there was ",
    FREED: "^expected .*, and there was ",
    SHARES: r"^\[\d+\.\d+, \d+\.\d+\]",
}
DEFECTS = {
    ("cuda", "charge"): (
        LIMIT,
        "shared/charge.c",
        "return region != NULL &&\n           (bytes",
        "return true ||\n           (bytes",
    ),
    ("cuda", "gate"): (
        SHARES,
        "cuda/api.def",
        "PTSZ_LAUNCH(cuLaunchKernel, (CUfunction f, unsigned gx, unsigned gy, unsigned gz, "
        "unsigned bx, unsigned by, unsigned bz,\n    unsigned shared, CUstream s, void **p, "
        "void **x), (f, gx, gy, gz, bx, by, bz, shared, s, p, x), DEFAULT(s))",
        "",
    ),
    ("cuda", "end"): (FREED, "shared/charge.c", "refund_functions[entry->kind](entry);", ";"),
    # Two points of 30 and four of 60: a machine's own time would not show them.
    ("cuda", "part of the time"): (
        SHARES,
        "timeshare/governor.c",
        "power_charge(&governor->power, ran_ns - waived_ns)",
        "power_charge(&governor->power, (ran_ns - waived_ns) * 15 / 16)",
    ),
    ("hip", "gate"): (
        SHARES,
        "hip/api.def",
        "GATED(hipModuleLaunchKernel, (hipFunction_t function, unsigned gx, unsigned gy, unsigned "
        "gz, unsigned bx, unsigned by,\n    unsigned bz, unsigned shared, hipStream_t stream, void "
        "**parameters, void **extra),\n    (function, gx, gy, gz, bx, by, bz, shared, stream, "
        "parameters, extra), DEFAULT(stream))",
        "",
    ),
}
DEFECTS |= {
    (api, what): DEFECTS["cuda", what]
    for api in ("hip", "musa", "acl")
    for what in ("charge", "end", "part of the time")
}
DEFECTS["acl", "gate"] = (
    SHARES,
    "acl/api.def",
    "GATED(rtsLaunchKernelWithDevArgs, (void *function, uint32_t blocks, rtStream_t stream, void "
    "*config,\n    const void *arguments, uint32_t bytes, void *reserved),\n    (function, blocks, "
    "stream, config, arguments, bytes, reserved),\n    UNLESS_FAULT(launches_below_ungated, "
    "real(function, blocks, stream, config, arguments, bytes, reserved),\n        "
    "DEFAULT(stream)))",
    "",
)
DEFECTS["musa", "gate"] = DEFECTS["cuda", "gate"]  # whose tables are made of CUDA's
#: Those whose limiter it is.
TENANTS: dict[str, tuple[type[OnACard], ...]] = {
    "cuda": (TestCuda, TestCorex),
    "musa": (TestMusa,),
    "hip": (TestHip,),
    "acl": (TestAscendBelow,),  # acl's own launches have gates in both layers
}


def test_each_defect_is_of_the_sources_as_they_are() -> None:
    for _, file, before, _ in DEFECTS.values():
        assert 1 == (LIMITERS / file).read_text().count(before), (file, before)


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("api", "left_out"),
    [pytest.param(*each, marks=[pytest.mark.hip] * (each[0] == "hip")) for each in DEFECTS],
)
def test_a_defect_is_found_by_the_contract(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: str, left_out: str
) -> None:
    promise, file, before, after = DEFECTS[api, left_out]
    mutated(((file, before, after),), tmp_path / "limiters", api)
    for contract in TENANTS[api]:
        card = contract()
        card.simulate(tmp_path, monkeypatch)
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'limiters'}:{HERE}")
        with pytest.raises(AssertionError, match=SAID[promise]) as broken:
            getattr(card, promise)()
        print(broken.value)
