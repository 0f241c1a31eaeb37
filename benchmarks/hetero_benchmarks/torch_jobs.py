"""The programs whose speed is measured that are written with PyTorch, as people write them.

Each is a generator that yields how many steps it has completed since it last did. It is imported
when a job starts, so that a machine without PyTorch can still measure the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence

import torch
from torch.nn import functional

Steps = Generator[int, None, None]

CARD = torch.device("cuda")


def resnet18() -> Steps:
    """Train resnet18 as PyTorch's imagenet example does with dummy data: fp32, batches of 256.

    The example's data loader is left out, because its speed is the host's: the images are made
    once, and copied to the card at every step as the example copies them.
    """
    import torchvision

    model = torchvision.models.resnet18().to(CARD).train()
    criterion = torch.nn.CrossEntropyLoss().to(CARD)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    images = torch.randn(256, 3, 224, 224).pin_memory()
    target = torch.randint(1000, (256,)).pin_memory()
    while True:
        here = target.to(CARD, non_blocking=True)
        loss = criterion(model(images.to(CARD, non_blocking=True)), here)
        loss.item()  # where the example waits for the card, to show the loss
        yield 1
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def infer() -> Steps:
    """Classify one image after the other with resnet18, waiting for each answer."""
    import torchvision

    torch.set_grad_enabled(False)
    model = torchvision.models.resnet18().to(CARD).eval()
    image = torch.randn(1, 3, 224, 224).pin_memory()
    while True:
        model(image.to(CARD, non_blocking=True)).argmax().item()
        yield 1


def gemm() -> Steps:
    """Multiply 8192x8192 bf16 matrices."""
    return _gemm(8192, depth=8)


def gemm16384() -> Steps:
    """Multiply 16384x16384 bf16 matrices: kernels longer than a time slice."""
    return _gemm(16384, depth=4)


def _gemm(side: int, *, depth: int) -> Steps:
    # Random numbers: zeros would draw less power.
    left, right = (torch.randn(side, side, device=CARD, dtype=torch.bfloat16) for _ in "ab")
    out = torch.empty_like(left)
    return _in_flight(lambda: torch.mm(left, right, out=out), depth)


def small() -> Steps:
    """Launch 1000 kernels of a few microseconds, then wait for them."""
    numbers = torch.zeros(1 << 20, device=CARD)
    while True:
        for _ in range(1000):
            numbers.add_(1.0)
        torch.cuda.synchronize()
        yield 1


def graph() -> Steps:
    """Replay a CUDA graph of 200 kernels."""
    numbers = torch.zeros(1 << 22, device=CARD)
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        for _ in range(200):
            numbers.add_(1.0)
    return _in_flight(recorded.replay, 4)


def copy() -> Steps:
    """Copy a GiB from one place on the card to another."""
    source = torch.zeros(1 << 30, device=CARD, dtype=torch.uint8)
    target = torch.empty_like(source)
    return _in_flight(lambda: target.copy_(source), 8)


def streams() -> Steps:
    """Keep four streams busy at once; a step is a product on each of them."""
    apart = [torch.cuda.Stream() for _ in range(4)]
    made = [
        tuple(torch.randn(2048, 2048, device=CARD, dtype=torch.bfloat16) for _ in "ab")
        for _ in apart
    ]
    torch.cuda.synchronize()
    outs = [torch.empty_like(left) for left, _ in made]

    def launch() -> None:
        for stream, (left, right), out in zip(apart, made, outs, strict=True):
            with torch.cuda.stream(stream):
                for _ in range(8):
                    torch.mm(left, right, out=out)
        for stream in apart:
            torch.cuda.current_stream().wait_stream(stream)

    return _in_flight(launch, 4)


#: The decoder: four layers as a model of 70 billion parameters has 80, 64 sequences at a time. Of
#: such size that the card takes longer for them than the processor to launch them: the speed of
#: the other kind is the processor's, which `infer` and `small` show.
#: Answers are short beside their prompts, so that all steps take nearly as long.
LAYERS, WIDTH, HEADS, SEQUENCES, PROMPT, LONGEST, WORDS = 4, 8192, 64, 64, 960, 1024, 32000


def decode() -> Steps:
    """Decode with a transformer, one token of every sequence a step, with a cache of keys."""

    def weight(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, device=CARD, dtype=torch.bfloat16) * columns**-0.5

    def norm(x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, (WIDTH,))

    linear = functional.linear

    def block(
        x: torch.Tensor, weights: Sequence[torch.Tensor], cached: torch.Tensor, position: int
    ) -> torch.Tensor:
        qkv, out, up, down = weights
        keys, values = cached
        q, k, v = (
            part.view(SEQUENCES, HEADS, 1, -1) for part in linear(norm(x), qkv).chunk(3, dim=-1)
        )
        keys[:, :, position : position + 1] = k
        values[:, :, position : position + 1] = v
        met = slice(position + 1)
        attended = functional.scaled_dot_product_attention(q, keys[:, :, met], values[:, :, met])
        x = x + linear(attended.reshape(SEQUENCES, WIDTH), out)
        return x + linear(functional.gelu(linear(norm(x), up)), down)

    torch.set_grad_enabled(False)
    torch.backends.cuda.enable_cudnn_sdp(False)  # it would plan anew for every length of the cache
    shapes = ((3 * WIDTH, WIDTH), (WIDTH, WIDTH), (4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH))
    layers = [tuple(weight(*shape) for shape in shapes) for _ in range(LAYERS)]
    embedding = weight(WORDS, WIDTH)
    cache = torch.zeros(
        LAYERS, 2, SEQUENCES, HEADS, LONGEST, WIDTH // HEADS, device=CARD, dtype=torch.bfloat16
    )
    tokens = torch.zeros(SEQUENCES, dtype=torch.long, device=CARD)
    while True:
        for position in range(PROMPT, LONGEST):
            x = embedding[tokens]
            for weights, cached in zip(layers, cache, strict=True):
                x = block(x, weights, cached, position)
            tokens = linear(norm(x), embedding).argmax(dim=-1)
            tokens.tolist()  # where a server sees the words and whether a sequence has ended
            yield 1


def _in_flight(launch: Callable[[], object], depth: int) -> Steps:
    """Keep `depth` launches queued and yield as each completes."""
    queued: deque[torch.cuda.Event] = deque()
    while True:
        launch()
        event = torch.cuda.Event()
        event.record()
        queued.append(event)
        if len(queued) == depth:
            queued.popleft().synchronize()
            yield 1
