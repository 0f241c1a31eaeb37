"""The programs that try a memory limit from inside, as `python -m hetero_benchmarks.probe NAME`.

With the limit in bytes, with what a process's context takes of it, with what `native` says where a
probe has that, and with seconds where it `lasts`, it tries the limit. By its name alone it is run
without hetero, and prints `{"taken": bytes}`, which is what `native` says.

A probe prints one JSON line `{"check": …, "passed": …, "saw": …}` for each truth it tried. While it
holds all it could get it prints `{"holding": bytes}` and waits for a line, so that the card can be
looked at from outside.
"""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.queues import Queue
from pathlib import Path
from queue import Empty
from typing import Any

import hetero_simulator
from attrs import field, frozen

from hetero.model.units import MiB, format_memory
from hetero_benchmarks.cumem import Pieces, Refused


@frozen(kw_only=True)
class Probe:
    """`run` is given the limit and what a context takes of it, in bytes.

    It raises ImportError or FileNotFoundError if it cannot.

    `says` is what is tried, `environment` what the program is started with, and `cards` how many it
    needs: the limit is each card's. `native` returns what the program takes of a card by itself,
    before it fills it, which `run` is given, too; and for how many seconds to go on if it `lasts`.
    """

    run: Callable[..., None]
    says: str
    native: Callable[[], int] | None = None
    environment: Mapping[str, str] = field(factory=dict)
    cards: int = 1
    lasts: bool = False


#: Pieces in which a program fills what it may have: what is left is less than the smallest.
_PIECES = (256 * MiB, 32 * MiB, 2 * MiB)
#: Seconds that another process may take to answer.
_PATIENCE_S = 60


def _report(check: str, passed: bool, saw: str) -> None:
    print(json.dumps({"check": check, "passed": passed, "saw": saw}), flush=True)


def _hold(size: int) -> None:
    print(json.dumps({"holding": size}), flush=True)
    sys.stdin.readline()


def driver(limit: int, context: int) -> None:
    """Allocate through the driver API, which simulated cards have too."""
    room = limit - context
    for size, fits in ((room - 32 * MiB, True), (room + MiB, False)):
        command = [str(hetero_simulator.job("cuda")), "--alloc", f"{size // MiB}MiB"]
        output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout
        answer = json.loads(output)
        saw = str(answer.get("error") or f"{answer['allocated']} bytes")
        if fits:
            _report(f"{format_memory(size)} are granted", answer.get("allocated") == size, saw)
        else:
            refused = saw == "CUDA_ERROR_OUT_OF_MEMORY"
            _report(f"{format_memory(size)} are refused as out of memory", refused, saw)


def smi(limit: int, _context: int) -> None:
    """Ask nvidia-smi, which shows people how much memory there is."""
    output = subprocess.run(["nvidia-smi"], stdout=subprocess.PIPE, text=True, check=True).stdout
    totals = re.findall(r"/\s*(\d+)MiB", output)
    shown = str(limit // MiB) in totals
    _report("nvidia-smi shows the grant", shown, " ".join(f"{each}MiB" for each in totals))


def torch(limit: int, context: int) -> None:
    """Fill the grant with tensors, go past it, go on, and free."""
    import torch

    room = limit - context
    within = room - 100 * MiB
    free, total = torch.cuda.mem_get_info()
    _report("cuMemGetInfo shows the grant", total == limit, f"{free} of {total} bytes free")

    def tensors(size: int) -> list[torch.Tensor]:
        count, rest = divmod(size, 100 * MiB)
        sizes = [100 * MiB] * count + ([rest] if rest else [])
        return [torch.ones(part, dtype=torch.uint8, device="cuda") for part in sizes]

    held = tensors(within)
    size = sum(tensor.numel() for tensor in held)
    _report(f"{format_memory(within)} of tensors succeed", size == within, format_memory(size))
    _hold(size)
    held.clear()
    torch.cuda.empty_cache()
    over = room + MiB
    try:
        torch.empty(over, dtype=torch.uint8, device="cuda")
        saw = "it succeeded"
    except torch.cuda.OutOfMemoryError as error:
        saw = f"{type(error).__name__}: {error}".splitlines()[0]
    check = f"{format_memory(over)} fail with torch's OutOfMemoryError"
    _report(check, saw.startswith("OutOfMemoryError"), saw)
    total_of_ones = int(torch.ones(1000, device="cuda").sum())
    _report("the process goes on", total_of_ones == 1000, f"a sum of 1000 ones is {total_of_ones}")
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0]
    again = sum(tensor.numel() for tensor in tensors(within))
    _report(
        "freed memory comes back", again == within, f"{format_memory(free)} free, then refilled"
    )


def _least(room: int) -> int:
    """Return what a library's allocator must get of what contexts leave: all but 2 % and 64 MiB."""
    return room * 98 // 100 - 64 * MiB


def _fill(room: int, allocate: Callable[[int], object], full: type[Exception], least: int) -> None:
    """Allocate until the library says that it is full, and compare what it got with the room."""
    held: list[object] = []
    got = _filled(held, room, allocate, full)
    _hold(got)
    check = f"it gets at least {format_memory(least)} and stops at the limit"
    _report(check, least <= got <= room, format_memory(got))
    held.clear()
    gc.collect()


def _filled(
    held: list[object], room: int, allocate: Callable[[int], object], full: type[Exception]
) -> int:
    """Allocate until it is refused, and put what came into `held`; return how many bytes came."""
    got = 0
    for size in _PIECES:
        while got <= room:
            try:
                held.append(allocate(size))
            except full:
                break
            got += size
    return got


def _fill_again(
    room: int,
    seconds: int,
    allocate: Callable[[int], object],
    full: type[Exception],
    free: Callable[[], object],
) -> None:
    """Fill the room and free it again for so long. What it needs for that it makes before."""
    held: list[object] = [allocate(size) for size in _PIECES]
    held.clear()
    gc.collect()
    free()
    _hold(0)
    most, fills, until = 0, 0, time.monotonic() + seconds
    while fills == 0 or time.monotonic() < until:
        most, fills = max(most, _filled(held, room, allocate, full)), fills + 1
        held.clear()
        gc.collect()
        free()
    saw = f"{format_memory(most)} in one of {fills} times"
    _report(f"filled and freed for {seconds} s, it stops at the limit", 0 < most <= room, saw)


def torch_again(limit: int, context: int, seconds: int) -> None:
    """Fill the grant and free it again with PyTorch."""
    import torch

    def allocate(size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device="cuda")

    full = torch.cuda.OutOfMemoryError
    _fill_again(limit - context, seconds, allocate, full, torch.cuda.empty_cache)


def cupy_again(limit: int, context: int, seconds: int) -> None:
    """Fill the grant and free it again with CuPy."""
    import cupy

    def allocate(size: int) -> object:
        return cupy.empty(size, dtype=cupy.uint8)

    full, free = cupy.cuda.memory.OutOfMemoryError, cupy.get_default_memory_pool().free_all_blocks
    _fill_again(limit - context, seconds, allocate, full, free)


def jax_again(limit: int, context: int, seconds: int) -> None:
    """Fill the grant and free it again with JAX."""
    import jax
    import jax.numpy

    def allocate(size: int) -> object:
        return jax.numpy.empty(size, dtype=jax.numpy.uint8).block_until_ready()

    full = jax.errors.JaxRuntimeError
    _fill_again(limit - context, seconds, allocate, full, gc.collect)


def cumem_again(limit: int, context: int, seconds: int) -> None:
    """Fill the grant and free it again as vLLM's cumem allocator does."""
    pieces = Pieces()
    _fill_again(limit - context, seconds, pieces.allocate, Refused, pieces.free)


def three_again(limit: int, context: int, seconds: int) -> None:
    """Fill the grant and free it again with three libraries at once."""
    words = (sys.executable, "-m", "hetero_benchmarks.probe")
    numbers = [str(number) for number in (limit, context, seconds)]
    programs = {
        name: subprocess.Popen(
            (*words, name, *numbers),
            env={**os.environ, **PROBES[name].environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in _TOGETHER
    }
    # Each has its context before another fills the grant.
    firsts = [json.loads(_next_line(program)) for program in programs.values()]
    if absent := [answer["absent"] for answer in firsts if "absent" in answer]:
        for program in programs.values():
            program.kill()
        raise ImportError(", ".join(absent))
    _hold(0)
    for program in programs.values():
        with suppress(BrokenPipeError):  # it has ended, which is reported below
            print("go on", file=program.stdin, flush=True)
    for name, program in programs.items():
        output, _ = program.communicate(timeout=seconds + _PATIENCE_S)
        for answer in map(json.loads, output.splitlines()):
            _report(f"{PROBES[name].says}: {answer['check']}", answer["passed"], answer["saw"])
        if program.returncode != 0:
            _report(f"{PROBES[name].says}: it ends well", False, f"status {program.returncode}")


def _next_line(program: subprocess.Popen[str]) -> str:
    return (program.stdout.readline() if program.stdout else "") or "{}"


def vllm(limit: int, context: int, seconds: int) -> None:
    """Serve with vLLM, which takes nine tenths of what it believes the card has."""
    from hetero_benchmarks import engine
    from hetero_benchmarks.serving import Load, ask

    async def serve() -> int:
        async with engine.vllm(engine.Setup(memory=(limit - context) * 9 // 10)) as server:
            until = time.monotonic() + seconds
            return len(await ask(server.answer, Load(), until))

    answers = os.dup(1)
    os.dup2(2, 1)  # it logs to standard output, which is ours alone
    try:
        answered = asyncio.run(serve())
    finally:
        os.dup2(answers, 1)
    _report(f"it serves for {seconds} s", answered > 0, f"{answered} requests")


def torch_filled(limit: int, context: int) -> None:
    """Fill the grant with PyTorch's allocator that the environment names."""
    import torch

    left = torch.ones(1024, 1024, device="cuda")
    ended = float((left @ left)[0, 0])
    _report("it starts and computes", ended == 1024, f"{ended}")

    def allocate(size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device="cuda")

    room = limit - context
    _fill(room, allocate, torch.cuda.OutOfMemoryError, _least(room))


def torch_processes(_limit: int, _context: int) -> None:
    """Send tensors of the card to a child, and load batches by workers into pinned memory."""
    import torch
    from torch import multiprocessing
    from torch.utils.data import DataLoader, TensorDataset

    for method in ("spawn", "forkserver"):
        processes = multiprocessing.get_context(method)
        tensors, answers = processes.Queue(), processes.Queue()
        child = processes.Process(target=_double, args=(tensors, answers), daemon=True)
        child.start()
        sent = torch.ones(16 * MiB, device="cuda")
        tensors.put(sent)
        try:
            answers.get(timeout=_PATIENCE_S)
            saw = f"1 doubled there is {float(sent.sum()) / sent.numel():g} here"
        except Empty:
            saw = f"no answer in {_PATIENCE_S} s"
        _report(f"a child by {method} computes with a tensor", saw.endswith("is 2 here"), saw)
        tensors.put(None)
        child.join(_PATIENCE_S)
    images = TensorDataset(torch.ones(512, 3, 64, 64))
    batches = DataLoader(images, batch_size=64, num_workers=2, pin_memory=True)
    total = sum(float(batch.to("cuda", non_blocking=True).sum()) for (batch,) in batches)
    seen = int(total / (3 * 64 * 64))
    _report("batches of two workers come by pinned memory", seen == 512, f"{seen} of 512 images")


def _double(tensors: Queue[Any], answers: Queue[str]) -> None:
    """Double each tensor in place, until there are no more."""
    import torch

    while (tensor := tensors.get()) is not None:
        tensor.mul_(2)
        torch.cuda.synchronize()
        del tensor  # its memory is the sender's
        answers.put("doubled")


def triton(limit: int, context: int) -> None:
    """Fill the grant with tensors that a kernel of Triton has written."""
    import torch
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator]
    def ones(tensor, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(tensor + at, 1, mask=at < size)

    def allocate(size: int) -> torch.Tensor:
        made = torch.empty(size, dtype=torch.uint8, device="cuda")
        ones[(size // 1024,)](made, size, BLOCK=1024)
        return made

    written = int(allocate(MiB).sum())
    _report("its kernel runs", written == MiB, f"{written} of {MiB} bytes are 1")
    torch.cuda.empty_cache()
    room = limit - context
    _fill(room, allocate, torch.cuda.OutOfMemoryError, _least(room))


def nccl(limit: int, context: int, taken: int) -> None:
    """Fill two cards of a grant, whose ranks reduce over NCCL, which opens exported memory."""
    _ranks(_fill_beside_nccl, limit - context, taken)


def nccl_taken() -> int:
    """Return what the first rank has of its card when it has reduced: tensors, buffers, code."""
    with tempfile.NamedTemporaryFile("r") as answer:
        _ranks(_tell_taken, answer.name)
        return int(answer.read())


def _ranks(run: Callable[..., None], *words: object) -> None:
    import torch

    with tempfile.TemporaryDirectory() as directory:
        torch.multiprocessing.spawn(run, (f"file://{directory}/ranks", *words), nprocs=2)


def _reduced(rank: int, ranks: str) -> tuple[float, int]:
    """Reduce a tensor of ones: what each of it is then, and the bytes that are gone since."""
    import torch
    from torch import distributed

    torch.cuda.set_device(rank)
    before = torch.cuda.mem_get_info()[0]
    distributed.init_process_group("nccl", init_method=ranks, world_size=2, rank=rank)
    ones = torch.ones(16 * MiB, device="cuda")
    distributed.all_reduce(ones)
    added = float(ones.sum()) / ones.numel()
    return added, before - torch.cuda.mem_get_info()[0]


def _tell_taken(rank: int, ranks: str, answer: str) -> None:
    from torch import distributed

    _, taken = _reduced(rank, ranks)
    if rank == 0:
        Path(answer).write_text(str(taken))
    distributed.barrier()
    distributed.destroy_process_group()


def _fill_beside_nccl(rank: int, ranks: str, room: int, taken: int) -> None:
    import torch
    from torch import distributed

    added, _ = _reduced(rank, ranks)

    def allocate(size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device="cuda")

    if rank == 0:
        _report("its ranks reduce", added == 2, f"1 and 1 are {added:g}")
        _fill(room, allocate, torch.cuda.OutOfMemoryError, _least(room - taken))
    distributed.barrier()
    distributed.destroy_process_group()


def cumem(limit: int, context: int) -> None:
    """Fill the grant as vLLM's cumem allocator does, put all to sleep and wake it."""
    pieces, room = Pieces(), limit - context
    _fill(room, pieces.allocate, Refused, _least(room))
    filled = sum(size for _, size, _ in pieces.held)
    pieces.sleep()
    pieces.wake()
    woken = sum(size for _, size, _ in pieces.held)
    _report("all of it wakes again", woken == filled, format_memory(woken))


def cupy(limit: int, context: int) -> None:
    """Fill the grant through CuPy's memory pool."""
    import cupy

    left = cupy.ones((1024, 1024), dtype=cupy.float32)
    ended = float((left @ left)[0, 0])
    _report("it starts and computes", ended == 1024, f"{ended}")

    def allocate(size: int) -> object:
        return cupy.empty(size, dtype=cupy.uint8)

    room = limit - context
    _fill(room, allocate, cupy.cuda.memory.OutOfMemoryError, _least(room))


def cupy_graph(limit: int, context: int) -> None:
    """Allocate in nodes of a CUDA graph, within the grant and past it."""
    import cupy

    runtime, stream = cupy.cuda.runtime, cupy.cuda.Stream(non_blocking=True)

    def replay(size: int) -> str:
        stream.begin_capture()
        pointer = runtime.mallocAsync(size, stream.ptr)
        runtime.memsetAsync(pointer, 1, size, stream.ptr)
        runtime.freeAsync(pointer, stream.ptr)
        try:
            stream.end_capture().launch(stream)
            stream.synchronize()
        except runtime.CUDARuntimeError as error:
            return str(error)
        return "replayed"

    within, over = limit - context - 100 * MiB, limit - context + MiB
    saw = replay(within)
    _report(f"a graph that allocates {format_memory(within)} runs", saw == "replayed", saw)
    saw = replay(over)
    refused = "cudaErrorMemoryAllocation" in saw
    _report(f"one that allocates {format_memory(over)} is refused", refused, saw)


def cupy_shared(limit: int, context: int) -> None:
    """Share memory between two processes of the grant, and fill what is left from the second."""
    import cupy

    size = (limit - context) * 6 // 10
    held = cupy.cuda.Memory(size)
    handle = cupy.cuda.runtime.ipcGetMemHandle(held.ptr)
    rest = limit - size - 2 * context
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        free, refused = pool.apply(_open_shared, (handle,))
    saw = f"{free} bytes free there"
    is_once = rest - 32 * MiB <= free <= rest  # a process's code is charged, too
    _report(f"{format_memory(size)} of two processes are charged once", is_once, saw)
    _report(
        "the rest is there for the other, and no more",
        "cudaErrorMemoryAllocation" in refused,
        refused,
    )


def _open_shared(handle: bytes) -> tuple[int, str]:
    """Open another process's memory; what is free then, and how it goes to take that and more."""
    import cupy

    runtime = cupy.cuda.runtime
    runtime.memset(runtime.ipcOpenMemHandle(handle, runtime.cudaIpcMemLazyEnablePeerAccess), 1, MiB)
    free = runtime.memGetInfo()[0]
    runtime.malloc(free // (2 * MiB) * (2 * MiB))
    try:
        runtime.malloc(2 * MiB)
    except runtime.CUDARuntimeError as error:
        return free, str(error)
    return free, "2 MiB more were granted"


def jax(limit: int, context: int) -> None:
    """Fill what JAX takes beforehand: three quarters of the memory it believes the card has."""
    _jax(limit - context, (limit - context) * 6 // 10)


def jax_all(limit: int, context: int) -> None:
    """Fill the grant with JAX, which takes memory as it is needed."""
    _jax(limit - context, _least(limit - context))


def _jax(room: int, least: int) -> None:
    import jax
    import jax.numpy

    card = jax.devices("gpu")[0]
    left = jax.numpy.ones((1024, 1024), device=card)
    ended = float((left @ left)[0, 0])
    _report("it starts and computes", ended == 1024, f"{ended}")

    def allocate(size: int) -> object:
        made = jax.numpy.empty(size, dtype=jax.numpy.uint8, device=card)
        return made.block_until_ready()

    _fill(room, allocate, jax.errors.JaxRuntimeError, least)


#: Probes of which `three_again` runs one each.
_TOGETHER = ("torch-again", "cupy-again", "jax-again")

PROBES: Mapping[str, Probe] = {
    "driver": Probe(run=driver, says="the driver API"),
    "smi": Probe(run=smi, says="nvidia-smi"),
    "torch": Probe(run=torch, says="PyTorch"),
    "torch-segments": Probe(
        run=torch_filled,
        says="PyTorch, expandable segments",
        environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    ),
    "torch-async": Probe(
        run=torch_filled,
        says="PyTorch, cudaMallocAsync",
        environment={"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
    ),
    "torch-processes": Probe(run=torch_processes, says="PyTorch, several processes"),
    "triton": Probe(run=triton, says="Triton"),
    "nccl": Probe(
        run=nccl,
        says="NCCL on two cards",
        native=nccl_taken,
        environment={"NCCL_NVLS_ENABLE": "0"},
        cards=2,
    ),
    "cumem": Probe(run=cumem, says="the calls of vLLM's cumem allocator"),
    "cupy": Probe(run=cupy, says="CuPy"),
    "cupy-graph": Probe(run=cupy_graph, says="CuPy, a graph's own memory"),
    "cupy-shared": Probe(run=cupy_shared, says="CuPy, memory of two processes"),
    "jax": Probe(run=jax, says="JAX"),
    "jax-all": Probe(
        run=jax_all,
        says="JAX, as it needs memory",
        environment={
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            "XLA_PYTHON_CLIENT_MEM_FRACTION": "1.0",
        },
    ),
    "torch-again": Probe(run=torch_again, says="PyTorch, again and again", lasts=True),
    "cupy-again": Probe(run=cupy_again, says="CuPy, again and again", lasts=True),
    "jax-again": Probe(
        run=jax_again,
        says="JAX, again and again",
        environment={"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"},
        lasts=True,
    ),
    "cumem-again": Probe(
        run=cumem_again, says="the calls of vLLM's cumem allocator, again and again", lasts=True
    ),
    "three-again": Probe(run=three_again, says="PyTorch, CuPy and JAX in one grant", lasts=True),
    "vllm": Probe(run=vllm, says="vLLM", lasts=True),
}


def main(name: str, *words: int) -> None:
    """Run one probe, or print that what it needs is absent."""
    probe = PROBES[name]
    try:
        if words:
            probe.run(*words)
        elif probe.native is not None:
            print(json.dumps({"taken": probe.native()}))
    except (ImportError, FileNotFoundError) as error:
        print(json.dumps({"absent": str(error)}))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
