"""Memory granted beyond the card: what does not fit there lies with the host."""

import pytest
from tenancy import MIB, SPILL, Rack, Terms


@pytest.mark.parametrize("path", ["plain", "managed", "pitch", "async", "pool", "block"])
def test_memory_granted_beyond_the_card_lies_with_the_host(rack: Rack, path: str) -> None:
    grant = rack.grant(Terms(memory=1536 * MIB, flags=SPILL))
    answers = grant.run(f"""
start()
path, chunk = {path!r}, {256 * MIB}
seen, held = [info()[0] >> 20], []
for _ in range(6):
    held.append(take(path, chunk))
seen.append([what for what in held if not isinstance(what, int) or what < 1000])
seen += [info()[0], take(path, {2 * MIB})]
if path != "block":
    for what in held:
        call("cuMemsetD8Async", what, ctypes.c_ubyte(1), 4096, None)
for what in held:
    give(path, what)
seen += [info()[0] >> 20, take(path, chunk) > 1000]
say(seen)
""")
    assert [1536, [], 0, 2, 1536, True] == answers
    assert 0 == grant.usage().used or 256 * MIB == grant.usage().used


def test_a_block_of_the_host_is_mapped_and_reached_like_one_of_the_card(rack: Rack) -> None:
    answers = rack.grant(Terms(memory=1536 * MIB, flags=SPILL)).run(f"""
from simulated import Access
start()
kept, beyond = block({1000 * MIB}), block({256 * MIB})
address, word = c_uint64(), c_uint(0)
call("cuMemAddressReserve", byref(address), {256 * MIB}, 0, 0, 0)
call("cuMemMap", address.value, {256 * MIB}, 0, beyond, 0)
call("cuMemSetAccess", address.value, {256 * MIB}, byref(Access(FIRST, 3)), 1)
call("cuMemsetD32_v2", address.value, c_uint(7), 1000)
call("cuMemcpyDtoH_v2", byref(word), address.value + 3996, 4)
call("cuMemUnmap", address.value, {256 * MIB})
call("cuMemRelease", beyond)
say([word.value, info()[0] >> 20])
""")
    assert [7, 536] == answers


def test_segments_that_grow_past_the_card_are_reached_from_end_to_end(rack: Rack) -> None:
    """As PyTorch's expandable segments do: one long address, mapped piece by piece."""
    answers = rack.grant(Terms(memory=1536 * MIB, flags=SPILL)).run(f"""
from simulated import Access
start()
whole, piece, address = {1536 * MIB}, {32 * MIB}, c_uint64()
call("cuMemAddressReserve", byref(address), whole, 0, 0, 0)
handles = []
for at in range(address.value, address.value + whole, piece):
    handles.append(block(piece))
    call("cuMemMap", at, piece, 0, handles[-1], 0)
    call("cuMemSetAccess", at, piece, byref(Access(FIRST, 3)), 1)
    call("cuMemsetD32_v2", at, c_uint(len(handles)), 16)
full, seen = [info()[0], take("block", {2 * MIB})], []
for at in range(address.value, address.value + whole, piece):
    word = c_uint()
    call("cuMemcpyDtoH_v2", byref(word), at + 60, 4)
    seen.append(word.value)
call("cuMemUnmap", address.value, whole)
for handle in handles:
    call("cuMemRelease", handle)
say([full, seen, info()[0] >> 20])
""")
    assert [[0, 2], list(range(1, 49)), 1536] == answers


def test_memory_beyond_the_card_is_out_of_memory_where_the_node_does_not_grant_it(
    rack: Rack,
) -> None:
    answers = rack.grant(Terms(memory=1536 * MIB)).run(f"""
start()
say([take("plain", {1000 * MIB}) > 1000, [take(path, {256 * MIB}) for path in ("plain", "block")]])
""")
    assert [True, [2, 2]] == answers
