"""Launches by each function of Ascend's runtime pass the gate once, and keep the share."""

import re
from pathlib import Path

import pytest
from tenancy import COUNTED, TABLES, Rack
from test_acl import ASKED, granted, racked

TEXT = (TABLES["acl"] / "api.def").read_text()
#: The functions that launch, each with its parameters' names.
GATED = {
    name: re.findall(r"(\w+)(?:,|$)", parameters)
    for name, parameters in re.findall(r"^GATED\((\w+), \(([^)]*)\)", TEXT, re.MULTILINE)
}
#: The functions of Huawei's libraries below acl, which have no names of their own in CANN 8.
BELOW = {"aclrtLaunchKernelImpl", "aclrtLaunchKernelV2Impl"}

#: What a program gives for a parameter of that name. Arguments of zeros are right for a pointer to
#: them, for one to their address, and for a handle that is none.
PREPARED = """
k, s, zeros = kernel(), stream(), (c_uint64 * 8)()
binary, model = c_uint64(), c_uint()
rt.rtDevBinaryRegister(byref(Binary(0, 0, b"spin", 4)), byref(binary))
rt.rtFunctionRegister(binary, 77, b"stub", b"spin", 0)
acl.aclmdlLoadFromMem(b"spin", 4, byref(model))
instance = captured(s, 1, lambda: launch(k, 0, s))
def given(name, parameter):
    values = {"function": k, "stub": 77, "stream": s, "arguments": zeros, "blocks": 1, "bytes": 8,
              "model": instance, "timeout_ms": -1, "operator_name": b"spin"}
    if name.startswith("aclmdlExecute") and parameter == "model":
        return model.value
    return binary if parameter == "handle" else values.get(parameter, 0)
"""


@pytest.fixture(params=("cann8", "cann9"))
def rack(tmp_path: Path, request: pytest.FixtureRequest) -> Rack:
    return racked(tmp_path, request.param)


def test_each_function_that_launches_passes_the_gate_once(rack: Rack) -> None:
    """Also where one calls another by its name, and where a capture records but one."""
    grant = granted(rack, core=50)
    program = f"""
names = {GATED!r}
for name, parameters in names.items():
    library = acl if name.startswith("acl") else rt
    if name in {BELOW!r} and not hasattr(rt.library, name):
        continue
    if name in {BELOW!r}:
        library = rt
    code = library.code(name, *(given(name, parameter) for parameter in parameters))
    assert code == 0, (name, code)
acl.aclrtSynchronizeDevice()
counted({len(GATED) - len(BELOW)})
say(len(names))
"""
    assert len(GATED) == grant.run(COUNTED + ASKED + PREPARED + program)
    below = len(BELOW) if rack.machine.environment()["LD_LIBRARY_PATH"].count("cann9") else 0
    assert len(GATED) - len(BELOW) + below == grant.usage().launches


def test_an_operator_is_gated_where_the_runtime_launches_it(rack: Rack) -> None:
    """The program calls none of the functions that launch."""
    program = """
operators = Library("libacl_op_compiler.so")
for _ in range(5):
    operators.aclopCompileAndExecute(
        b"spin", c_int(0), None, None, c_int(0), None, None, None, 0, 0, None, 0)
acl.aclrtSynchronizeDevice()
counted(5)
say(0)
"""
    grant = granted(rack, core=50)
    grant.run(COUNTED + ASKED + program)
    assert 5 == grant.usage().launches


def test_what_is_captured_passes_no_gate_and_is_charged_at_each_execute(rack: Rack) -> None:
    """The capture stays what it is: no event of the limiter is in it, and none spoils it."""
    program = """
k, s, other = kernel(), stream(), stream()
launch(k, 500, other)
instance = captured(s, 0, lambda: [launch(k, 500, s) for _ in range(40)])
launch(k, 500, other)
for _ in range(3):
    acl.aclmdlRIExecuteAsync(instance, s)
acl.aclrtSynchronizeDevice()
counted(5)
say(took(s, lambda: acl.aclmdlRIExecuteAsync(instance, s)))
"""
    grant = granted(rack, core=50)
    took_ms = grant.run(COUNTED + ASKED + program)
    assert took_ms >= 20
    assert grant.usage().launches <= 5 + 2


def test_a_launch_whose_arguments_are_not_known_waits_for_the_gate(rack: Rack) -> None:
    """In CANN 8 it is made by another one, which passes it, too."""
    program = """
k, s = kernel(), stream()
instance = captured(s, 0, lambda: launch(k, 500, s))
for _ in range(5):
    acl.aclmdlRIExecute(instance, -1)
counted(5)
say(0)
"""
    grant = granted(rack, core=50)
    grant.run(COUNTED + ASKED + program)
    assert grant.usage().launches in (5, 10)
    foreign = "acl.aclrtSetDevice(1)\nsay(acl.code('aclmdlRIExecute', 0, -1))"
    assert 207000 == grant.run(ASKED + foreign)


def test_a_stream_that_waits_for_a_word_or_a_notify_is_let_go(rack: Rack) -> None:
    """What it waits for is done by work that comes later, which the closed gate must not keep."""
    program = """
k, s, other, word = kernel(), stream(), stream(), acl.made("aclrtMallocAlign32", 8, 2)
notify = acl.made("aclrtCreateNotify", 0)
for _ in range(40):
    acl.aclrtValueWait(word, 1, 0, s)
    rt.rtNotifyWait(notify, s)
    launch(k, 100, s)
    launch(k, 100, other)
    acl.aclrtValueWrite(word, 1, 0, other)
    rt.rtNotifyRecord(notify, other)
    acl.aclrtSynchronizeStream(s)
    acl.aclrtMemset(word, 8, 0, 8)
say("done")
"""
    assert "done" == granted(rack, core=30).run(ASKED + program)


def test_a_launch_without_a_current_device_is_the_grants_only_ones(rack: Rack) -> None:
    """The runtime refuses it, and not the limiter."""
    program = """
answers, k = [], kernel()
def elsewhere():
    answers.append(launch(k, 1))
thread = threading.Thread(target=elsewhere)
thread.start()
thread.join()
say(answers)
"""
    assert [107002] == granted(rack, core=50).run(ASKED + program)


def test_work_goes_on_after_streams_contexts_and_devices_have_ended(rack: Rack) -> None:
    """Each with work that was launched and not waited for."""
    program = """
for round in range(4):
    k, s = kernel(), stream()
    for _ in range(20):
        launch(k, 200, s)
    acl.aclrtDestroyStreamForce(s)
    own = acl.made("aclrtCreateContext", 0)
    s = stream()
    for _ in range(20):
        launch(k, 200, s)
    acl.aclrtDestroyContext(own)
    acl.aclrtSetDevice(0)
    for _ in range(20):
        launch(k, 200)
    acl.aclrtResetDevice(0)
    acl.aclrtResetDevice(0) if round % 2 else acl.aclrtResetDeviceForce(0)
    acl.aclrtSetDevice(0)
acl.aclrtSynchronizeDevice()
say("done")
"""
    assert "done" == granted(rack, core=50).run(ASKED + program)


BUSY = """
k, s = kernel(), stream()
acl.aclmdlLoadFromMem(b"spin " * 20, 100, byref(model := c_uint()))
instance = captured(s, 1, lambda: [launch(k, 100, s) for _ in range(20)])
WAYS = {"model": lambda: acl.aclmdlRIExecuteAsync(instance, s),
        "below": lambda: rt.rtModelExecute(instance, s, 0),
        "ffts": lambda: rt.rtFftsPlusTaskLaunch(None, s),
        "waited for": lambda: acl.aclmdlRIExecute(instance, -1)}
def busy(way, seconds):
    count, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        for _ in range(4):
            WAYS[way]()
        acl.aclrtSynchronizeStream(s)
        count += 4
    return count / seconds
"""


@pytest.mark.parametrize("way", ["model", "below", "ffts", "waited for"])
def test_executes_and_tasks_of_unknown_length_keep_the_share(tmp_path: Path, way: str) -> None:
    rack = racked(tmp_path, "cann8" if way in ("below", "ffts") else "cann9")
    rack.machine.rack.write_text(rack.machine.rack.read_text() + "\n[kernel ffts]\ntime = 2 ms\n")
    program = ASKED + BUSY + f"busy({way!r}, 0.5)\nsay(busy({way!r}, 3))"
    free = rack.run(program, **rack.virtual(1))
    (rack.directory / "clock").unlink()
    grant = granted(rack, core=30)
    held = grant.run(program, **grant.virtual())
    assert 30 == pytest.approx(100 * held / free, abs=1)
