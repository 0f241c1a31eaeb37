"""The programs of several cards, as people write them: with PyTorch's processes, or with JAX.

Each is a generator of the same form as those of torch_jobs, made in every process of the program
with its number and their count. All processes make the same steps in the same order, and PyTorch's
have the process group of NCCL when one is made. It is imported when a program starts, so that a
machine without PyTorch can still measure the others.
"""

from __future__ import annotations

import ctypes
import mmap
from collections import deque
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Steps = Generator[int, None, None]


def ddp_resnet50(rank: int, _ranks: int, _folder: Path) -> Steps:
    """Train resnet50 data parallel as PyTorch's imagenet example does: fp32, 64 images a card.

    The images are made once and copied at every step, as torch_jobs.resnet18 does.
    """
    import torch
    import torchvision
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(torchvision.models.resnet50().cuda(), device_ids=[rank])
    criterion = torch.nn.CrossEntropyLoss().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    images = torch.randn(64, 3, 224, 224).pin_memory()
    target = torch.randint(1000, (64,)).pin_memory()
    while True:
        labels = target.cuda(non_blocking=True)
        loss = criterion(model(images.cuda(non_blocking=True)), labels)
        loss.item()  # where the example waits for the card, to show the loss
        yield 1
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


#: A transformer as large as the smallest GPT-2 (its table 2): layers, width, heads, words, context.
LAYERS, WIDTH, HEADS, WORDS, CONTEXT = 12, 768, 12, 50257, 1024
#: Sequences a card and step.
BATCH = 8


def _layers(count: int, width: int, heads: int) -> list[torch.nn.Module]:
    """Return so many layers of a transformer, on the card."""
    import torch

    return [
        torch.nn.TransformerEncoderLayer(
            width,
            heads,
            4 * width,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
            device="cuda",
        )
        for _ in range(count)
    ]


def _transformer() -> torch.nn.Module:
    """Return a transformer of GPT-2's size, on the card."""
    import torch

    return torch.nn.Sequential(
        torch.nn.Embedding(WORDS, WIDTH, device="cuda"),
        *_layers(LAYERS, WIDTH, HEADS),
        torch.nn.LayerNorm(WIDTH, device="cuda"),
        torch.nn.Linear(WIDTH, WORDS, bias=False, device="cuda"),
    )


def _training(model: torch.nn.Module) -> Steps:
    """Train it in bf16 to name the next word; nothing is masked, which changes no time."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(WORDS, (BATCH, CONTEXT + 1), device="cuda")
    while True:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(tokens[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
        yield 1


def ddp_gpt2(rank: int, _ranks: int, _folder: Path) -> Steps:
    """Train a transformer of GPT-2's size, data parallel."""
    from torch.nn.parallel import DistributedDataParallel

    return _training(DistributedDataParallel(_transformer(), device_ids=[rank]))


def fsdp_gpt2(_rank: int, _ranks: int, _folder: Path) -> Steps:
    """Train the same with its parameters, gradients and optimizer divided among the cards."""
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = _transformer()
    for layer in model[1 : LAYERS + 1]:
        fully_shard(layer, mp_policy=precision)
    return _training(fully_shard(model, mp_policy=precision))


#: Tensor parallel: layers, tokens, width; the inner width is four times that.
TP_LAYERS, TP_TOKENS, TP_WIDTH = 16, 2048, 4096


def tp(_rank: int, ranks: int, _folder: Path) -> Steps:
    """Read prompts with 16 layers, of each of which every card has a part: an all-reduce each."""
    import torch
    from torch import distributed
    from torch.nn import functional

    torch.set_grad_enabled(False)
    inner = 4 * TP_WIDTH // ranks
    layers = [(_weight(inner, TP_WIDTH), _weight(TP_WIDTH, inner)) for _ in range(TP_LAYERS)]
    tokens = torch.randn(TP_TOKENS, TP_WIDTH, device="cuda", dtype=torch.bfloat16)

    def read() -> None:
        x = tokens
        for up, down in layers:
            normed = functional.rms_norm(x, (TP_WIDTH,))
            part = functional.linear(functional.gelu(functional.linear(normed, up)), down)
            distributed.all_reduce(part)
            x = x + part

    return _in_flight(read, 2)


#: A decoder of which every card has a part: layers, width, heads, sequences, tokens of each before.
DECODER_LAYERS, DECODER_WIDTH, DECODER_HEADS, SEQUENCES, BEFORE = 12, 8192, 64, 64, 256


def decode_graph(_rank: int, ranks: int, _folder: Path) -> Steps:
    """Replay a CUDA graph of one token for 64 sequences, with two all-reduces a layer in it."""
    import torch
    from torch import distributed
    from torch.nn import functional

    torch.set_grad_enabled(False)
    width, heads, own = DECODER_WIDTH, DECODER_HEADS // ranks, DECODER_WIDTH // ranks
    shapes = ((3 * own, width), (width, own), (4 * own, width), (width, 4 * own))
    layers = [tuple(_weight(*shape) for shape in shapes) for _ in range(DECODER_LAYERS)]
    cache = torch.randn(
        DECODER_LAYERS, 2, SEQUENCES, heads, BEFORE, own // heads,
        device="cuda", dtype=torch.bfloat16,
    )  # fmt: skip
    token = torch.randn(SEQUENCES, width, device="cuda", dtype=torch.bfloat16)

    def decode() -> None:
        x = token
        for (qkv, out, up, down), (keys, values) in zip(layers, cache, strict=True):
            normed = functional.rms_norm(x, (width,))
            q, k, v = (
                part.view(SEQUENCES, heads, -1)
                for part in functional.linear(normed, qkv).chunk(3, dim=-1)
            )
            keys[:, :, -1], values[:, :, -1] = k, v
            met = functional.scaled_dot_product_attention(q.unsqueeze(2), keys, values)
            part = functional.linear(met.reshape(SEQUENCES, own), out)
            distributed.all_reduce(part)
            x = x + part
            normed = functional.rms_norm(x, (width,))
            part = functional.linear(functional.gelu(functional.linear(normed, up)), down)
            distributed.all_reduce(part)
            x = x + part

    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(3):  # libraries allocate what they need before a capture
            decode()
    torch.cuda.synchronize()
    recorded = torch.cuda.CUDAGraph()
    # NCCL's own threads may ask for events meanwhile.
    with torch.cuda.graph(recorded, capture_error_mode="thread_local"):
        decode()
    return _in_flight(recorded.replay, 2)


def all_reduce(mebibytes: int, count: int) -> Callable[[int, int, Path], Steps]:
    """Return what sums up so many MiB over all cards, `count` times a step."""

    def program(_rank: int, _ranks: int, _folder: Path) -> Steps:
        import torch
        from torch import distributed

        numbers = torch.randn(mebibytes << 18, device="cuda")

        def sums() -> None:
            for _ in range(count):  # the mean, so that the numbers stay as large as they are
                distributed.all_reduce(numbers, op=distributed.ReduceOp.AVG)

        return _in_flight(sums, 4)

    return program


#: A pipeline: layers in all, width, heads, and sequences of CONTEXT tokens a part of the batch.
PIPED_LAYERS, PIPED_WIDTH, PIPED_HEADS, PIPED_PARTS, PIPED_BATCH = 12, 1536, 12, 4, 4


def pipeline(rank: int, ranks: int, _folder: Path) -> Steps:
    """Train a transformer of which every card has some layers: four parts of a batch a step.

    All parts go forward and then all go back (GPipe), so that the sends of a card come as its
    neighbour receives them: NCCL makes one after the other.
    """
    import torch
    from torch import distributed

    layers = _layers(PIPED_LAYERS // ranks, PIPED_WIDTH, PIPED_HEADS)
    model = torch.nn.Sequential(*layers).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    shape = (PIPED_BATCH, CONTEXT, PIPED_WIDTH)
    first, last = rank == 0, rank == ranks - 1
    batch = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    while True:
        passed = []
        for _ in range(PIPED_PARTS):
            given = batch if first else torch.empty_like(batch)
            if not first:
                distributed.recv(given, rank - 1)
                given.requires_grad_()
            made = model(given)
            if not last:
                distributed.send(made.detach().contiguous(), rank + 1)
            passed.append((given, made))
        optimizer.zero_grad()
        for given, made in passed:
            slope = torch.empty_like(made)
            if last:
                made.float().square().mean().backward()
            else:
                distributed.recv(slope, rank + 1)
                made.backward(slope)
            if not first:
                distributed.send(given.grad.contiguous(), rank - 1)
        optimizer.step()
        torch.cuda.synchronize()
        yield 1


def pair(_rank: int, _ranks: int, _folder: Path) -> Steps:
    """Multiply 8192x8192 bf16 matrices on all cards by one thread, and hand the products on.

    A step is four products a card, and the copy of the last to the next card.
    """
    import torch

    cards = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    made = [
        tuple(torch.randn(8192, 8192, device=card, dtype=torch.bfloat16) for _ in "ab")
        for card in cards
    ]
    outs = [torch.empty_like(left) for left, _ in made]
    handed = [torch.empty_like(left) for left, _ in made]
    queued: deque[list[torch.cuda.Event]] = deque()
    while True:
        for (left, right), out in zip(made, outs, strict=True):
            for _ in range(4):
                torch.mm(left, right, out=out)
        for number, out in enumerate(outs):
            handed[(number + 1) % len(cards)].copy_(out, non_blocking=True)
        events = []
        for card in cards:
            with torch.cuda.device(card):
                event = torch.cuda.Event()
                event.record()
                events.append(event)
        queued.append(events)
        if len(queued) == 2:
            for event in queued.popleft():
                event.synchronize()
            yield 1


def psum(_rank: int, _ranks: int, _folder: Path) -> Steps:
    """Multiply matrices on all cards and sum the products up (JAX, one process), 8 times a step."""
    import jax
    import numpy
    from jax import lax
    from jax import numpy as jnp
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    side, count = 4096, len(jax.devices())
    mesh = Mesh(numpy.array(jax.devices()), ("cards",))
    apart = PartitionSpec("cards")

    def work(x: Any, weight: Any) -> Any:
        for _ in range(8):
            x = x + lax.psum(x @ weight, "cards") / side
        return x / 16  # so that the numbers stay as large as they are

    shape, placed = (count * side, side), NamedSharding(mesh, apart)
    keys = jax.random.split(jax.random.key(1))
    x, weight = (
        jax.device_put(jax.random.normal(key, shape).astype(jnp.bfloat16), placed) for key in keys
    )
    step = jax.jit(jax.shard_map(work, mesh=mesh, in_specs=(apart, apart), out_specs=apart))
    queued: deque[Any] = deque()
    while True:
        queued.append(step(x, weight))
        if len(queued) == 2:
            queued.popleft().block_until_ready()
            yield 1


#: A step of the simulated program: its kernels, and how often the loop of each turns: once a
#: nanosecond on the simulated cards that are shipped.
KERNELS, LOOPS = 2, 1_000_000
#: Its kernel: the simulated driver reads no more than the name and what it is given.
SPIN = b".version 6.0\n.target sm_50\n.visible .entry spin(.param .u32 iterations) { ret; }\n"
#: Bytes of the memory in which the ranks say how far their cards are, and apart from each other.
MET, APART = 4096, 64


def simulated(rank: int, ranks: int, folder: Path) -> Steps:
    """Launch kernels on the card of that number, which then waits for all others: a collective.

    It needs a driver and nothing else, and its kernel is one for simulated cards.
    """
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        status = getattr(cuda, name)(*arguments)
        if status:
            raise RuntimeError(f"{name}: error {status}")

    device, context, module, kernel = ctypes.c_int(), *(ctypes.c_void_p() for _ in "cmk")
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), rank)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuModuleLoadData", ctypes.byref(module), SPIN)
    call("cuModuleGetFunction", ctypes.byref(kernel), module, b"spin")
    loops = ctypes.c_uint(LOOPS)
    arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(loops), ctypes.c_void_p))
    with (folder / "met").open("a+b") as file:
        file.truncate(MET)
        shared = (ctypes.c_char * MET).from_buffer(mmap.mmap(file.fileno(), MET))
    met = ctypes.c_uint64()
    call("cuMemHostRegister_v2", shared, ctypes.c_size_t(MET), 2)  # mapped for the card
    call("cuMemHostGetDevicePointer_v2", ctypes.byref(met), shared, 0)
    places = [ctypes.c_uint64(met.value + number * APART) for number in range(ranks)]
    events = [ctypes.c_void_p() for _ in "ab"]  # two steps are in flight
    for event in events:
        call("cuEventCreate", ctypes.byref(event), 2)  # without times
    step = 0
    while True:
        step += 1
        for _ in range(KERNELS):
            call("cuLaunchKernel", kernel, 1, 1, 1, 32, 1, 1, 0, None, arguments, None)
        call("cuStreamWriteValue32_v2", None, places[rank], step, 0)
        for place in places:
            call("cuStreamWaitValue32_v2", None, place, step, 0)  # until it is as much or more
        call("cuEventRecord", events[step % 2], None)
        if step > 1:
            call("cuEventSynchronize", events[(step - 1) % 2])
            yield 1


def _weight(rows: int, columns: int) -> torch.Tensor:
    import torch

    return torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16) * columns**-0.5


def _in_flight(launch: Callable[[], object], depth: int) -> Steps:
    """Keep `depth` launches queued and yield as each completes."""
    import torch

    queued: deque[torch.cuda.Event] = deque()
    while True:
        launch()
        event = torch.cuda.Event()
        event.record()
        queued.append(event)
        if len(queued) == depth:
            queued.popleft().synchronize()
            yield 1
