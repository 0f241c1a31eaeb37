"""Each attack succeeds again when the lines that hold it are taken back, one attack at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
import tenancy
from attacks import ATTACKS, BY_NAME, beside, grant_for, simulated_rack, start, told
from attacks import OF_OTHERS as BESIDE
from tenancy import LIMITER, mutated

LIMITERS = LIMITER.parents[2]

#: What a pool or graphs add to what they reserve.
_GROWTH_FREE = (("shared/pools.c", "(reserved - pool->charged - growth", "(0 - growth"),)

#: What calls are asked for is copied before it is looked at.
_AS_IT_IS = "asked = (asked) == NULL ? NULL : &asked##_now"

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
    "no_more_files": (("shared/shim.c", "!governor_prepare(device)", "false"),),
    "nvml_readers": (("core/ledger.c", "region->slot < 0 || !region_lock", "!region_lock"),),
    "stopped_sibling": (("core/ledger.c", "atomic_fetch_add(&region->owed[device], bytes);", ""),),
    "in_constructor": (
        ("core/symbols.h", "#include <stdatomic.h>", '#include "libc.h"\n#include <stdatomic.h>'),
        (
            "core/symbols.h",
            "library_resolve(library);\n        real = symbol_known(row);",
            "real = libc_dlsym(libc_dlopen(library->names[0], 1), row->name);\n"
            "        atomic_store(&row->real, real);",
        ),
    ),
    "exit_handler": (
        (
            "timeshare/gate.c",
            "if (!atomic_load(&gates_retired))\n            let_through = wait_outside",
            "let_through = wait_outside",
        ),
    ),
    "endless_exit": (("timeshare/gate.c", "if (gate->spent_ns <= EXIT_NS)", "if (true)"),),
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
    "exported_blocks": (
        (
            "shared/virtual.c",
            "exported && !card_got_back(block->device, before, block->bytes)",
            "false",
        ),
    ),
    "outliving_graphs": (
        *_GROWTH_FREE,
        ("shared/graph.c", "if (uncounted_settle(device_current()))\n", "if (true)\n"),
        ("shared/graph.c", "if (!uncounted_settle(device_current()))", "if (false)"),
        (
            "shared/graph.c",
            "&fresh, memory_order_relaxed) &&",
            "&fresh, memory_order_relaxed) && false &&",
        ),
    ),
    "module_arrays": (
        ("shared/module.c", ".bytes = blocks_for(image->globals)}", ".bytes = 0}"),
        (
            "shared/module.c",
            "uncounted_settle(load->device) && charge_within(load->device)",
            "true",
        ),
    ),
    "local_memory": (("shared/local.c", "if (of_thread <= OF_CONTEXT ||", "if (true ||"),),
    "pools_of_a_byte": _GROWTH_FREE,
    "context_limits": (("shared/limits.c", "!takes_memory(limit)", "takes_memory(limit)"),),
    "sparse_arrays": (
        ("shared/tiles.c", "tiles[i].memOperationType == VALUE(MEM_OPERATION_TYPE_MAP)", "false"),
    ),
    "blocked_frees": (("shared/room.c", "!ended : !is_back(freed)", "!ended : false"),),
    "ended_owners": (
        ("shared/memory.c", "bool shared = ours && is_shared(&entry);", "bool shared = false;"),
        ("shared/pools.c", "pool->exported = true;", ""),
    ),
    "managed_pools": (
        ("shared/blocks.c", "device, bytes, MANAGED_BATCH) : charge", "device, bytes, 1) : charge"),
    ),
    "raw_lookup": (
        ("shared/shim.c", "return ours[row] != NULL ? ours[row] : found;", "return found;"),
    ),
    "other_contexts": (("shared/charge.c", "return entry->owner == context;", "return true;"),),
    "rounded_sizes": (
        ("shared/blocks.c", "    return rounded(bytes, BLOCK);", "    return bytes;"),
    ),
    "retained_blocks": (
        (
            "shared/virtual.c",
            "pthread_mutex_lock(&mapping_lock);\n    result_t answer = real(handle, address);",
            "result_t answer = real(handle, address);\n    pthread_mutex_lock(&mapping_lock);",
        ),
        (
            "shared/virtual.c",
            "pthread_mutex_lock(&mapping_lock);\n"
            "    size_t count = take_mappings(address, bytes, &taken);",
            "size_t count = take_mappings(address, bytes, &taken);\n"
            "    pthread_mutex_lock(&mapping_lock);",
        ),
    ),
    "graph_nodes": (("shared/graph_size.c", "return read ? flat.bytes : 0;", "return 0;"),),
    "seldom_doors": (
        ("shared/memory.c", "bool shared = ours && is_shared(&entry);", "bool shared = false;"),
    ),
    "early_charges": (("shared/uncounted.c", "if (now >= old)", "if (true)"),),
    "page_tables": (("shared/page_tables.c", "    return more;", "    return more * 0;"),),
    "changing_arguments": (
        ("shared/arguments.h", _AS_IT_IS, "asked = ((void)&asked##_now, asked)"),
        ("shared/stubs.h", "(void *)ours_made)", "(void *)shown)"),
        ("shared/stubs.h", "show_made(shown, ours_made, bytes_made);", "(void)bytes_made;"),
        ("shared/memory.c", "pitch == NULL ? NULL : &ours,", "pitch,"),
    ),
    "racing_pools": (
        (
            "shared/pool.c",
            "int device = device_;",
            "if (stream_capturing(stream)) return call; int device = device_;",
        ),
        (
            "shared/pool.c",
            "DRIVER(MemAllocFromPoolAsync)(pointer, bytes, pool_name(of), meant)",
            "real(pointer, bytes, stream)",
        ),
    ),
    "honest_memory": (("shared/pools.c", "if (taken < pool->charged) {", "if (false) {"),),
    "hidden_captures": (
        (
            "cuda/recapture.c",
            "BEGIN_CAPTURE(real(stream, mode, graph, callback, data));",
            "return real(stream, mode, graph, callback, data);",
        ),
    ),
}
#: Those that try to get more time than their share, of tests/attacks/test_arbiter.py.
_FORGIVEN = (("timeshare/governor.c", "->trails_ns = drained ? 0 : now;", "->trails_ns = 0;"),)
OF_TIME: dict[str, tuple[tuple[str, str, str], ...]] = {
    "long_kernels": _FORGIVEN,
    "long_graphs": _FORGIVEN,
    "rare_long_kernels": (
        (
            "timeshare/light_run.c",
            "        if (watch->stands)\n            charge_long(governor, course, now, others);",
            "        if (false)\n            charge_long(governor, course, now, others);",
        ),
        (
            "timeshare/light.h",
            "    light->target = count + random % (spread + 1);",
            "    light->target = count + random % (spread < 16 ? spread + 1 : 16);",
        ),
        (
            "timeshare/hold.c",
            "    if (!atomic_load(&hold->goes))\n        stamp(hold);",
            "    if ((launches == 1 || launches == 4) && !atomic_load(&hold->goes))\n"
            "        stamp(hold);",
        ),
    ),
    "many_streams": (
        (
            "timeshare/tracked_streams.h",
            "#define TRACKED_STREAM_CHUNK  256u\n#define TRACKED_STREAM_CHUNKS 64u",
            "#define TRACKED_STREAM_CHUNK  1u\n#define TRACKED_STREAM_CHUNKS 1u",
        ),
    ),
    "late_captures": (
        (
            "timeshare/tracked_streams.c",
            "atomic_store_explicit(&stream->dirty, true, memory_order_relaxed);",
            "stream->pending = false;",
        ),
        (
            "timeshare/gate.c",
            "    tracked_streams_settled(&gate->streams);\n    unlock(gate);",
            "    unlock(gate);",
        ),
    ),
    "ungated_work": (
        (
            "cuda/api.def",
            "PTSZ_GATED(cuMemPrefetchAsync, (CUdeviceptr d, size_t n, CUdevice to, CUstream s), "
            "(d, n, to, s), DEFAULT(s))",
            "",
        ),
    ),
    "frozen_thread": (("timeshare/gate.c", "        close_if_silent(gate);\n", ""),),
    "changing_streams": (("shared/arguments.h", "if ((asked) != NULL)", "if (false)"),),
    "ended_contexts": (
        (
            "shared/ends.c",
            "            gate_before_context_ends(&governor->gate, context);",
            "            gate_after_context_ended(&governor->gate, context, false);",
        ),
        (
            "shared/ends.c",
            "            gate_after_context_ended(&governor->gate, context, lives);",
            "            gate_after_context_ended(&governor->gate, context, false);",
        ),
    ),
    "many_launchers": (("timeshare/gate.c", "(is_long(gate) || atomic_load", "(atomic_load"),),
    "many_exits": (
        (
            "timeshare/gate.c",
            "uint64_t grants_ns = gate->spend(gate->owner, 0);",
            "uint64_t grants_ns = 0;",
        ),
    ),
    "several_devices": (
        ("shared/several.c", "while (entered < count && answer", "while (entered < 1 && answer"),
    ),
}
#: Those that try to keep others from the card, of the same file.
OF_OTHERS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "stuck_launcher": (
        ("timeshare/governor.c", "atomic_load(&governor->gate.looks) != governor->missed", "true"),
    ),
    "shared_files": (("core/descriptor.c", "O_CLOEXEC | O_NONBLOCK", "O_CLOEXEC"),),
    "late_sleeper": (
        (
            "timeshare/governor.c",
            "    while (!atomic_load(&gates_retired)) {\n        prctl(PR_SET_TIMERSLACK, 1UL);",
            "    prctl(PR_SET_TIMERSLACK, 1UL);\n    while (!atomic_load(&gates_retired)) {",
        ),
    ),
    "working_exit": (("timeshare/governor.c", "    say_what_exits(governor);\n", ""),),
}
#: A second hold of an attack that another row of it has a hold for.
SECOND: dict[str, tuple[tuple[str, str, str], ...]] = {
    "signal_handler": (("timeshare/gate.c", "atomic_store(outer->cell, WAITS);", ";"),),
}
#: Further holds of libraries and fat binaries, each by itself.
FURTHER: list[tuple[str, tuple[tuple[str, str, str], ...]]] = [
    ("module_arrays", (("shared/image.c", "if (magic == FATBIN_MAGIC) {", "if (false) {"),)),
    ("module_arrays", (("shared/libraries.c", "library.link = &used_one;", "return true;"),)),
    ("module_arrays", (("shared/module.c", "answer == RESULT_OK && grew > load->bytes", "false"),)),
    ("module_arrays", (("shared/module.c", "lazy && load->bytes == 0", "false"),)),
    ("local_memory", (("shared/local.c", "if (charge(device, more) != RESULT_OK)", "if (false)"),)),
    (
        "local_memory",
        (
            (
                "shared/nodes.c",
                "return local_in_graph(kernel) ? call",
                "return (kernel), true ? call",
            ),
        ),
    ),
    (
        "local_memory",
        (
            (
                "shared/module.c",
                "    if (answer == RESULT_OK)\n        local_of_function(*function);",
                "",
            ),
        ),
    ),
    (
        "local_memory",
        (("shared/arguments.h", _AS_IT_IS, "asked = ((void)&asked##_now, asked)"),),
    ),
    (
        "outliving_graphs",
        (("shared/graph.c", "atomic_load(&with_memory) == 0 || !sum", "true || !sum"),),
    ),
    (
        "sparse_arrays",
        (("shared/tiles.c", "found.owner == array && found.link == block", "true"),),
    ),
    ("racing_pools", (("shared/pools.c", " || pool->pins > 0) {", ") {"),)),
    (
        "sparse_arrays",
        (("shared/tiles.c", "real(ours, count, stream)", "real(tiles, count, stream)"),),
    ),
    ("early_charges", (("shared/uncounted.c", "return !alone || high", "return high"),)),
    ("early_charges", (("shared/uncounted.c", "(int64_t)hidden(device)", "0"),)),
    (
        "seldom_doors",
        (
            (
                "cuda/views.c",
                "return uncounted_look(device) && charge_within(device);",
                "return true;",
            ),
            ("cuda/views.c", "uncounted_fits(device, BLOCK);", "true;"),
        ),
    ),
    ("ended_owners", (("shared/borrowed.c", "lost : bytes) + others;", "lost : bytes);"),)),
    ("blocked_frees", (("shared/ends.c", "    room_stream_over(stream);\n", ""),)),
    (
        "other_contexts",
        (
            (
                "shared/libraries.c",
                "fits && next_of(STANDING_CONTEXT",
                "false && next_of(STANDING_CONTEXT",
            ),
        ),
    ),
]
TABLES = (REVERTS, OF_TIME, OF_OTHERS, SECOND)
ALL = [(name, edits) for table in TABLES for name, edits in table.items()] + FURTHER


def test_each_attack_that_is_held_has_the_lines_that_hold_it() -> None:
    assert {attack.name for attack in ATTACKS if attack.held} == set(REVERTS)
    for name, edits in ALL:
        for file, before, _ in edits:
            assert 1 == (LIMITERS / file).read_text().count(before), (name, file, before)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "edits"), ALL, ids=[name for name, _ in ALL])
def test_an_attack_succeeds_without_the_lines_that_hold_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    edits: tuple[tuple[str, str, str], ...],
) -> None:
    monkeypatch.setattr(tenancy, "LIMITER", mutated(edits, tmp_path / "limiters"))
    attack = {**BY_NAME, **{each.name: each for each in BESIDE}}[name]
    if name in OF_OTHERS:
        answer = beside(attack, tmp_path)
    else:
        grant = grant_for(attack, simulated_rack(attack, tmp_path))
        answer = told(start(attack, grant, tmp_path))
    assert not answer["held"], answer["got"]
    assert name not in OF_TIME or not answer["got"].startswith("exit"), answer["got"]
    print(answer["got"])
