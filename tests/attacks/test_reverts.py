"""Each attack succeeds again when the lines that hold it are taken back, one attack at a time."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import tenancy
from attacks import ATTACKS, CORE, MEMORY, Attack, beside, start, told
from tenancy import LIMITER, Rack, Terms

LIMITERS = LIMITER.parents[2]

#: By attack: in which file of the limiter which text becomes which.
REVERTS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "libc_dlsym": (("core/symbols.c", ".rows = loader_rows, .count = ROWS", ".count = 0"),),
    "libc_dlvsym": (("core/symbols.c", ".rows = loader_rows, .count = ROWS", ".count = 0"),),
    "own_functions": (("Makefile", "$(SHARED) $(WRAPPED)", "$(SHARED)"),),
    "unnoticed_forks": (
        ("core/tenant.c", "madvise(&process, sizeof process, MADV_WIPEONFORK) == 0", "false"),
    ),
    "closed_files": (
        ("core/region.c", "slot >= 0 && keep_open(region, file, slot)", "slot >= 0"),
        (
            "core/region.c",
            "    close(file);\n    return region->slot >= 0;",
            "    return region->slot >= 0;",
        ),
    ),
    "reused_numbers": (
        (
            "core/descriptor.c",
            "return descriptor->number >= 0 && status_of",
            "return descriptor->number >= 0 || status_of",
        ),
    ),
    "no_more_files": (("cuda/shim.c", "!governor_prepare(device)", "false"),),
    "nvml_readers": (("core/ledger.c", "region->slot < 0 || !region_lock", "!region_lock"),),
    "stopped_sibling": (("core/ledger.c", "atomic_fetch_add(&region->owed[device], bytes);", ""),),
    "in_constructor": (
        ("core/symbols.h", "#include <stdatomic.h>", '#include "libc.h"\n#include <stdatomic.h>'),
        (
            "core/symbols.h",
            "library_resolve(library);\n        real = symbol_known(row);",
            "real = libc_dlsym(libc_dlopen(library->name, 1), row->name);\n"
            "        atomic_store(&row->real, real);",
        ),
    ),
    "exit_handler": (
        (
            "timeshare/gate.c",
            "if (!atomic_load(&gates_retired))\n            wait_outside",
            "wait_outside",
        ),
    ),
    "endless_exit": (
        ("timeshare/gate.c", "return gate->spent_ns <= earned_ns ? 0", "return true ? 0"),
    ),
    "signal_handler": (
        (
            "timeshare/gate.c",
            "pthread_sigmask(SIG_SETMASK, &all, before)",
            "pthread_sigmask(SIG_BLOCK, NULL, before)",
        ),
        # The lock is held for so few instructions that a handler seldom meets it: for more, here.
        (
            "timeshare/gate.c",
            "    gate->signals = before;",
            "    gate->signals = before;\n    for (volatile int i = 0; i < 1000; i++) {}",
        ),
    ),
}
#: Those that try to get more time than their share, of tests/attacks/test_arbiter.py.
_FORGIVEN = (("timeshare/governor.c", "->trails_ns = drained ? 0 : now;", "->trails_ns = 0;"),)
OF_TIME: dict[str, tuple[tuple[str, str, str], ...]] = {
    "long_kernels": _FORGIVEN,
    "long_graphs": _FORGIVEN,
    "many_streams": (
        (
            "timeshare/tracked_streams.h",
            "#define TRACKED_STREAM_CHUNK  256u\n#define TRACKED_STREAM_CHUNKS 64u",
            "#define TRACKED_STREAM_CHUNK  1u\n#define TRACKED_STREAM_CHUNKS 1u",
        ),
    ),
}
#: Those that try to keep others from the card, of the same file.
OF_OTHERS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "stuck_launcher": (
        ("timeshare/governor.c", "atomic_load(&governor->gate.looks) != governor->missed", "true"),
    ),
    "shared_files": (("core/descriptor.c", "O_CLOEXEC | O_NONBLOCK", "O_CLOEXEC"),),
}
#: A second hold of an attack that another row of it has a hold for.
SECOND: dict[str, tuple[tuple[str, str, str], ...]] = {
    "signal_handler": (("timeshare/gate.c", "atomic_store(outer->cell, WAITS);", ""),),
}
TABLES = (REVERTS, OF_TIME, OF_OTHERS, SECOND)
ALL = [(name, edits) for table in TABLES for name, edits in table.items()]


def test_each_attack_that_is_held_has_the_lines_that_hold_it() -> None:
    assert {attack.name for attack in ATTACKS if attack.held} == set(REVERTS)
    for name, edits in ALL:
        for file, before, _ in edits:
            assert 1 == (LIMITERS / file).read_text().count(before), (name, file, before)


def _without(edits: tuple[tuple[str, str, str], ...], copy: Path) -> Path:
    shutil.copytree(LIMITERS, copy, ignore=shutil.ignore_patterns("build", "lib"))
    for file, before, after in edits:
        source = copy / file
        source.write_text(source.read_text().replace(before, after))
    library = "hetero_limiters/lib/libhetero-cuda.so"
    environment = {**os.environ, "MAKEFLAGS": ""}
    # What is left unused is not the point.
    subprocess.run(["make", "-s", "-C", copy, "CC=cc -w", library], check=True, env=environment)
    return copy / library


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "edits"), ALL, ids=[name for name, _ in ALL])
def test_an_attack_succeeds_without_the_lines_that_hold_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    edits: tuple[tuple[str, str, str], ...],
) -> None:
    monkeypatch.setattr(tenancy, "LIMITER", _without(edits, tmp_path / "limiters"))
    attack = next((one for one in ATTACKS if one.name == name), Attack(name, name))
    if name in OF_OTHERS:
        answer = beside(attack, tmp_path)
    else:
        grant = Rack.of(tmp_path).grant(Terms(memory=MEMORY, core=100 * CORE))
        answer = told(start(attack, grant, tmp_path))
    assert not answer["held"], answer["got"]
    print(answer["got"])
