"""The fake NVML through NVIDIA's own binding, unmodified."""

from pathlib import Path

import pytest
from simulated import GIB, MIB, Machine

RACK = """
[driver]
nvidia = 550.54.15

[device]
vendor = nvidia
model = Big
memory = 80 GiB
compute = 9.0
numa = 1
pci = 0000:18:00.0
links = 1:NV4 2:PIX

[device]
vendor = nvidia
model = Big
memory = 80 GiB
compute = 9.0
numa = 1

[device]
vendor = nvidia
model = Lost
memory = 16 GiB
health = XID 79

[device]
vendor = nvidia
model = Split
memory = 143771 MiB
mig = 1g.18gb x3, 2g.35gb x1
"""

QUESTIONS = """
    import pynvml as n
    n.nvmlInit()
    cards = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
    def answer(name, *arguments):
        try:
            return getattr(n, name)(*arguments)
        except n.NVMLError as error:
            return f"error {error.value}"
"""


@pytest.fixture
def rack(tmp_path: Path) -> Machine:
    return Machine(tmp_path, RACK)


def test_a_device_is_what_the_rack_says(rack: Machine) -> None:
    answers = rack.run(f"""{QUESTIONS}
    card = cards[0]
    say({{
        "driver": n.nvmlSystemGetDriverVersion(),
        "cuda": n.nvmlSystemGetCudaDriverVersion(),
        "count": len(cards),
        "name": n.nvmlDeviceGetName(card),
        "total": n.nvmlDeviceGetMemoryInfo(card).total,
        "total v2": n.nvmlDeviceGetMemoryInfo(card, version=n.nvmlMemory_v2).total,
        "pci": n.nvmlDeviceGetPciInfo(card).busId,
        "compute": n.nvmlDeviceGetCudaComputeCapability(card),
        "numa": n.nvmlDeviceGetNumaNodeId(card),
        "no numa": answer("nvmlDeviceGetNumaNodeId", cards[3]),
        "memory affinity": list(n.nvmlDeviceGetMemoryAffinity(card, 1, 0)),
        "mig": n.nvmlDeviceGetMigMode(card),
        "limits": answer("nvmlDeviceGetMemoryLimits_v1", card, n.c_nvmlGetMemoryLimits_v1_t()),
        "found": n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(cards[1]))),
        "by pci": n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId("0000:18:00.0")),
        "rows": n.nvmlDeviceGetRemappedRows(card),
        "idle": n.nvmlDeviceGetUtilizationRates(card).gpu,
        "users": n.nvmlDeviceGetComputeRunningProcesses(card),
    }})""")
    assert {
        "driver": "550.54.15",
        "cuda": 12040,
        "count": 4,
        "name": "Big",
        "total": 80 * GIB,
        "total v2": 80 * GIB,
        "pci": "00000000:18:00.0",
        "compute": [9, 0],
        "numa": 1,
        "no numa": "error 3",
        "memory affinity": [2],
        "mig": [0, 0],
        "limits": "error 13",
        "found": 1,
        "by pci": 0,
        "rows": [0, 0, 0, 0],
        "idle": 0,
        "users": [],
    } == answers


def test_links_are_told_from_both_ends(rack: Machine) -> None:
    answers = rack.run(f"""{QUESTIONS}
    states = [n.nvmlDeviceGetNvLinkState(cards[1], link) for link in range(6)]
    say({{
        "states": states,
        "far": n.nvmlDeviceGetNvLinkRemotePciInfo(cards[1], 0).busId,
        "none": answer("nvmlDeviceGetNvLinkState", cards[3], 0),
        "levels": [n.nvmlDeviceGetTopologyCommonAncestor(cards[0], other) for other in cards],
        "nvlink": n.nvmlDeviceGetP2PStatus(cards[0], cards[1], 2),
        "no nvlink": n.nvmlDeviceGetP2PStatus(cards[0], cards[2], 2),
        "read": n.nvmlDeviceGetP2PStatus(cards[0], cards[2], 1),
    }})""")
    assert {
        "states": [1, 1, 1, 1, 0, 0],
        "far": "00000000:18:00.0",
        "none": "error 3",
        "levels": [0, 40, 10, 50],
        "nvlink": 0,
        "no nvlink": 1,
        "read": 0,
    } == answers


def test_a_lost_device_keeps_its_name_and_answers_nothing_else(rack: Machine) -> None:
    answers = rack.run(f"""{QUESTIONS}
    lost = cards[2]
    cuda = Cuda()
    cuda.cuInit(0)
    say([n.nvmlDeviceGetName(lost), n.nvmlDeviceGetUUID(lost)[:4],
         answer("nvmlDeviceGetMemoryInfo", lost), answer("nvmlDeviceGetUtilizationRates", lost),
         cuda.made("cuDeviceGetCount")])""")
    assert ["Lost", "GPU-", "error 15", "error 15", 2] == answers


def test_mig_instances_are_devices_of_their_own(rack: Machine) -> None:
    answers = rack.run(f"""{QUESTIONS}
    card = cards[3]
    parts = []
    for i in range(n.nvmlDeviceGetMaxMigDeviceCount(card)):
        try:
            parts.append(n.nvmlDeviceGetMigDeviceHandleByIndex(card, i))
        except n.NVMLError_NotFound:
            pass
    say({{
        "mode": n.nvmlDeviceGetMigMode(card),
        "names": [n.nvmlDeviceGetName(part) for part in parts],
        "slices": [n.nvmlDeviceGetAttributes(part).gpuInstanceSliceCount for part in parts],
        "memory": [n.nvmlDeviceGetAttributes(part).memorySizeMB for part in parts],
        "ids": [n.nvmlDeviceGetGpuInstanceId(part) for part in parts],
        "compute ids": [n.nvmlDeviceGetComputeInstanceId(part) for part in parts],
        "uuids": len({{n.nvmlDeviceGetUUID(part) for part in parts}}),
        "parent": n.nvmlDeviceGetIndex(n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(parts[3])),
        "utilization": answer("nvmlDeviceGetUtilizationRates", card),
    }})""")
    assert {
        "mode": [1, 1],
        "names": ["Split MIG 1g.18gb"] * 3 + ["Split MIG 2g.35gb"],
        "slices": [1, 1, 1, 2],
        "memory": [17166] * 3 + [33378],
        "ids": [1, 2, 3, 4],
        "compute ids": [0, 0, 0, 0],
        "uuids": 4,
        "parent": 3,
        "utilization": "error 3",
    } == answers


def test_a_mig_instance_is_used_by_its_uuid_and_told_apart(rack: Machine) -> None:
    uuid = rack.run(
        QUESTIONS
        + "    say(n.nvmlDeviceGetUUID(n.nvmlDeviceGetMigDeviceHandleByIndex(cards[3], 1)))"
    )
    use = 'cuda = Cuda(); cuda.start(); cuda.made("cuMemAlloc_v2", 512 * MIB)'
    with rack.standing(use, CUDA_VISIBLE_DEVICES=uuid) as process:
        answers = rack.run(f"""{QUESTIONS}
    users = n.nvmlDeviceGetComputeRunningProcesses(cards[3])
    parts = [n.nvmlDeviceGetMigDeviceHandleByIndex(cards[3], i) for i in range(4)]
    say([[[user.pid, user.usedGpuMemory, user.gpuInstanceId] for user in users],
         [n.nvmlDeviceGetMemoryInfo(part).used for part in parts]])""")
        assert [[[process.pid, 512 * MIB, 2]], [0, 512 * MIB, 0, 0]] == answers


def test_a_busy_process_shows_with_its_memory_and_its_share(machine: Machine) -> None:
    job = machine.job("--iterations", "300", "--memory", "100MiB", "--seconds", "5")
    try:
        answers = machine.run(f"""{QUESTIONS}
    import time
    busy = 0
    for _ in range(100):
        time.sleep(0.05)
        busy = n.nvmlDeviceGetUtilizationRates(cards[0]).gpu
        if busy >= 95:
            break
    user, = n.nvmlDeviceGetComputeRunningProcesses(cards[0])
    sample, = n.nvmlDeviceGetProcessUtilization(cards[0], 0)
    say([busy >= 95, user.pid, user.usedGpuMemory, sample.pid, sample.smUtil >= 90])""")
    finally:
        job.kill()
        job.communicate()
    assert [True, job.pid, 100 * MIB, job.pid, True] == answers
