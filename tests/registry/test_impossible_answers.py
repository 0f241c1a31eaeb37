"""Answers of a vendor that have the right types and cannot be are a sentence, as crashes are."""

from pathlib import Path
from textwrap import dedent, indent

import pytest

import hetero.registry.supervisor
from hetero.model import Edits, Usage
from hetero.model.errors import Refused
from hetero.registry.registry import Registry
from tests.registry.installed import good, install
from tests.registry.test_hostile_vendors import granted

#: What a hook gives that has the right types and cannot be, and what is said of it.
IMPOSSIBLE = {
    "evolve(one, capacity={})": "device hostile-0: no core or memory or slots in its capacity",
    "evolve(one, capacity={**one.capacity, 'memory': 1 << 63})": f"hostile-0: memory {1 << 63}",
    "evolve(one, capacity={**one.capacity, 'slots': -1})": "device hostile-0: slots -1",
    "evolve(one, index=-1)": "device hostile-0: index -1",
    "evolve(one, uuid='u' * 64)": "as a UUID: at most 63 bytes, all printable",
    "evolve(one, uuid='a' + chr(0))": r"gave 'a\x00' as a UUID",
    "evolve(one, uuid='a' + chr(0xd800))": r"gave 'a\ud800' as a UUID",
    "*(evolve(one, uuid=str(n)) for n in range(257))": "gave 257 devices: 256 at most",
    "plugin.Edits(env={'A': chr(0)})": r"gave '\x00' in its edits",
    "plugin.Edits(env={'A': chr(0xd800)})": r"gave '\ud800' in its edits",
    "plugin.Edits(env={'A': 'x' * (1 << 17)})": "x' in its edits",
    "plugin.Edits(env={'A=B': ''})": "gave 'A=B' as a variable",
    "plugin.Edits(env={'': ''})": "gave '' as a variable",
    "plugin.Edits(device_nodes=('/dev/' + chr(0),))": r"gave '/dev/\x00' in its edits",
    "plugin.Edits(parts={'good-0': 'p'})": "gave 'p' as the name of a slice of 'good-0'",
    "plugin.Edits(parts={'hostile-0': 'p' * 64})": "as the name of a slice of 'hostile-0'",
    "plugin.Usage(memory=-1)": "gave -1 where a figure of what is used was due",
    "plugin.Usage(core=float('inf'))": "Infinity is no number",
    "plugin.Usage(processes={1: 10**30})": f"gave {10**30} where",
}


def test_what_cannot_be_is_one_sentence_and_the_neighbour_does_not_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    at, gives = tmp_path / "at", tmp_path / "gives"
    made = good("hostile").replace("yield VENDOR.device(", "one = VENDOR.device(")
    made += f"    yield from given('discover', one) or [one]\n\nAT = {str(tmp_path)!r}\n"
    made += dedent("""
        def given(hook, one=None):
            from pathlib import Path
            from attrs import evolve
            if Path(AT, "at").read_text() == hook:
                names = {"one": one, "evolve": evolve, "plugin": plugin}
                return eval("[" + Path(AT, "gives").read_text() + "]", names)
        """)
    for hook in ("enforce", "observe"):
        head = f"def hetero_{hook}({'directory' if hook == 'enforce' else 'device'}):\n"
        made = made.replace(head, f"{head}    if told := given({hook!r}): return told[0]\n")
    entries = [install(tmp_path, "good", good()), install(tmp_path, "hostile", made)]
    registry = Registry(lambda: entries)
    for code, says in IMPOSSIBLE.items():
        monkeypatch.setattr(hetero.registry.supervisor, "FIRST_PAUSE_S", 0.0)
        hooks = {"plugin.E": "enforce", "plugin.U": "observe"}
        at.write_text(hooks.get(code[:8], "discover"))
        gives.write_text(code)
        discovery = registry.discover()
        rows = {row.name: row for row in discovery.rows}
        devices = [device for device in discovery.devices if device.vendor == "hostile"]
        if at.read_text() == "discover":
            reason = rows["hostile"].reason
        elif at.read_text() == "observe":
            ((_, usage),), (reason,) = registry.observe_all(devices)
            assert Usage() == usage
        else:
            with pytest.raises(Refused) as refused:
                registry.enforce(granted("hostile"), devices, directory=tmp_path)
            reason = str(refused.value)
        assert reason is not None
        assert reason.startswith(f"hostile: {at.read_text()}: "), code
        assert says in reason
        assert ("ok", 1) == (rows["good"].state, rows["good"].devices)
    registry.close()


@pytest.mark.parametrize(
    ("declared", "says"),
    {
        "visible=('PATH',)": "gave 'PATH' as a variable that names its devices",
        "visible=('LD_LIBRARY_PATH',)": "gave 'LD_LIBRARY_PATH' as a variable",
        "visible=('A=B',)": "gave 'A=B' as a variable",
        "runtime=plugin.ContainerRuntime(variables=(chr(0),))": r"gave '\x00' as a variable",
        "runtime=plugin.ContainerRuntime(none=(chr(0),))": r"gave '\x00' for no device",
        "limiter='../x'": "gave '../x' as a name",
        "container=plugin.ContainerEdits(files=('{',))": "gave '{' as a path",
        "container=plugin.ContainerEdits(device_nodes=('/dev/{index.__class__}',))": (
            "gave '/dev/{index.__class__}' as a path"
        ),
    }.items(),
)
def test_what_no_vendor_can_declare_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, declared: str, says: str
) -> None:
    source = good("hostile").replace('visible=("HOSTILE_VISIBLE_DEVICES",),', f"{declared},")
    monkeypatch.syspath_prepend(str(tmp_path))
    entry = install(tmp_path, "hostile", source)
    registry = Registry(lambda: [entry])
    (row,) = registry.discover().rows
    registry.close()

    assert "broken" == row.state
    assert f"hostile: discover: {says}" in str(row.reason)
    assert () == registry.declarations()


def test_an_answer_that_was_not_asked_for_is_no_answer_to_the_next_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    twice = """
        import os, struct
        from hetero.registry.message import WorkerReply, framed, written
        for name in os.listdir("/proc/self/fd"):
            try:
                os.write(int(name), framed(written(WorkerReply(edits=plugin.Edits())), 2))
            except OSError:
                continue
    """
    head = "def hetero_observe(device):\n"
    source = good("hostile").replace(head, head + indent(dedent(twice), "    "))
    monkeypatch.syspath_prepend(str(tmp_path))
    entry = install(tmp_path, "hostile", source)
    registry = Registry(lambda: [entry])
    (device,) = registry.discover().devices
    registry.observe(device)

    with pytest.raises(Refused, match="hostile: enforce: an answer to another question"):
        registry.enforce(granted("hostile"), [device], directory=tmp_path)
    assert registry.enforce(granted("hostile"), [device], directory=tmp_path) != Edits()
    registry.close()
