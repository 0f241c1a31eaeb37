"""The programs whose speed is measured that are written with PyTorch, as people write them.

Each is a generator that yields how many steps it has completed since it last did. It is imported
when a job starts, so that a machine without PyTorch can still measure the others.
"""

from __future__ import annotations

import time
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
        labels = target.to(CARD, non_blocking=True)
        loss = criterion(model(images.to(CARD, non_blocking=True)), labels)
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


#: A decoder of a billion parameters. Its kernels are so small that one sequence leaves the card
#: idle most of the time: the speed is that of the thread that launches them.
LIGHT_LAYERS, LIGHT_WIDTH, LIGHT_HEADS, LIGHT_PROMPT = 20, 2048, 32, 2048


def light() -> Steps:
    """Decode one sequence with a small transformer, a token a step, with a cache of keys."""
    longest = LIGHT_PROMPT + 64
    cache = torch.zeros(LIGHT_LAYERS, 2, longest, LIGHT_WIDTH, device=CARD, dtype=torch.bfloat16)
    forward = _small_transformer()
    while True:
        x = torch.randn(1, LIGHT_WIDTH, device=CARD, dtype=torch.bfloat16)
        for position in range(LIGHT_PROMPT, longest):
            x = forward(x, cache, position)
            x.sum().item()  # where a server sees the word
            yield 1


def prefill() -> Steps:
    """Read a prompt of 2048 tokens with the same transformer."""
    cache = torch.zeros(
        LIGHT_LAYERS, 2, LIGHT_PROMPT, LIGHT_WIDTH, device=CARD, dtype=torch.bfloat16
    )
    forward = _small_transformer()
    x = torch.randn(LIGHT_PROMPT, LIGHT_WIDTH, device=CARD, dtype=torch.bfloat16)
    while True:
        forward(x, cache, 0).sum().item()
        yield 1


def _small_transformer() -> Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]:
    """Return what adds tokens to a cache (layers, keys and values, tokens, width)."""
    torch.set_grad_enabled(False)
    linear, width = functional.linear, LIGHT_WIDTH

    def weight(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, device=CARD, dtype=torch.bfloat16) * columns**-0.5

    shapes = ((3 * width, width), (width, width), (4 * width, width), (width, 4 * width))
    layers = [tuple(weight(*shape) for shape in shapes) for _ in range(LIGHT_LAYERS)]

    def heads(x: torch.Tensor) -> torch.Tensor:
        return x.view(1, x.shape[0], LIGHT_HEADS, -1).transpose(1, 2)

    def forward(x: torch.Tensor, cache: torch.Tensor, position: int) -> torch.Tensor:
        end = position + x.shape[0]
        for (qkv, out, up, down), (keys, values) in zip(layers, cache, strict=True):
            normed = functional.rms_norm(x, (width,))
            q, keys[position:end], values[position:end] = linear(normed, qkv).chunk(3, dim=-1)
            attended = functional.scaled_dot_product_attention(
                heads(q), heads(keys[:end]), heads(values[:end]), is_causal=x.shape[0] > 1
            )
            x = x + linear(attended.transpose(1, 2).reshape(x.shape), out)
            normed = functional.rms_norm(x, (width,))
            x = x + linear(functional.gelu(linear(normed, up)), down)
        return x

    return forward


def vit() -> Steps:
    """Train a vision transformer (ViT-B/16) in bf16, 32 images a step."""
    import torchvision

    model = torchvision.models.vit_b_16().to(CARD).train()
    criterion = torch.nn.CrossEntropyLoss().to(CARD)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    images = torch.randn(32, 3, 224, 224, device=CARD)
    target = torch.randint(1000, (32,), device=CARD)
    while True:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = criterion(model(images), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
        yield 1


#: So many products of 8192x8192 bf16 take an H100 some 25 ms (1.5 ms each).
HALVES_PRODUCTS = 17


def halves() -> Steps:
    """Work for some 25 ms and rest for 25, as a program does that waits for its data.

    The work of a step is always the same: of a program that worked until some time had passed, a
    step would be less work where the program is stopped.
    """
    left, right = (torch.randn(8192, 8192, device=CARD, dtype=torch.bfloat16) for _ in "ab")
    out = torch.empty_like(left)
    while True:
        for _ in range(HALVES_PRODUCTS):
            torch.mm(left, right, out=out)
            torch.cuda.synchronize()
        time.sleep(0.025)
        yield 1


#: So many products of 4096x4096 bf16 take an H100 some 5 ms (0.2 ms each).
ONLINE_PRODUCTS = 25


def online() -> Steps:
    """Answer a request: a chain of products, of which the last is waited for."""
    left, right = (torch.randn(4096, 4096, device=CARD, dtype=torch.bfloat16) for _ in "ab")
    out = torch.empty_like(left)
    while True:
        for _ in range(ONLINE_PRODUCTS):
            torch.mm(left, right, out=out)
        torch.cuda.synchronize()
        yield 1


def lstm() -> Steps:
    """Train a language model of two LSTM layers, as PyTorch's word-language-model example does."""
    vocabulary, width, length, batch = 10_000, 1024, 35, 64
    embed = torch.nn.Embedding(vocabulary, width).to(CARD)
    layers = torch.nn.LSTM(width, width, num_layers=2).to(CARD)
    decoder = torch.nn.Linear(width, vocabulary).to(CARD)
    parameters = [*embed.parameters(), *layers.parameters(), *decoder.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    words = torch.randint(vocabulary, (length, batch), device=CARD)
    while True:
        hidden, _ = layers(embed(words))
        loss = functional.cross_entropy(decoder(hidden).flatten(0, 1), words.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
        yield 1


def mlp() -> Steps:
    """Run a compiled network of eight wide layers, whose kernels PyTorch replays as graphs."""
    torch.set_grad_enabled(False)
    layers = [torch.nn.Linear(4096, 4096) for _ in range(8)]
    network = torch.nn.Sequential(*(part for each in layers for part in (each, torch.nn.GELU())))
    run = torch.compile(network.to(CARD, torch.bfloat16), mode="reduce-overhead")
    rows = torch.randn(1024, 4096, device=CARD, dtype=torch.bfloat16)
    return _in_flight(lambda: run(rows), 4)


def gather() -> Steps:
    """Gather a million random rows of 256 numbers: bound by the card's memory."""
    table = torch.randn(1 << 22, 256, device=CARD)
    rows = torch.randint(len(table), (1 << 20,), device=CARD)
    out = torch.empty(len(rows), 256, device=CARD)
    return _in_flight(lambda: torch.index_select(table, 0, rows, out=out), 8)


def softmax() -> Steps:
    """Run a kernel that Triton compiles: the softmax of rows of 8192 numbers."""
    run = torch.compile(lambda rows: torch.softmax(rows * 2 + 1, dim=-1))
    rows = torch.randn(16384, 8192, device=CARD)
    return _in_flight(lambda: run(rows), 8)


def host_copies() -> Steps:
    """Copy 256 MiB to the card and back, in turn, waiting for neither but the last."""
    on_card = torch.empty(1 << 28, dtype=torch.uint8, device=CARD)
    on_host = torch.empty(1 << 28, dtype=torch.uint8).pin_memory()

    def both() -> None:
        on_card.copy_(on_host, non_blocking=True)
        on_host.copy_(on_card, non_blocking=True)

    return _in_flight(both, 2)


def jax_training() -> Steps:
    """Train a network of four wide layers with JAX."""
    import jax
    import jax.numpy as jnp

    keys = jax.random.split(jax.random.key(0), 5)
    weights = [jax.random.normal(key, (4096, 4096), jnp.bfloat16) * 0.02 for key in keys[:4]]
    rows = jax.random.normal(keys[4], (2048, 4096), jnp.bfloat16)

    def loss(weights: list[jax.Array], rows: jax.Array) -> jax.Array:
        for each in weights:
            rows = jax.nn.relu(rows @ each)
        return jnp.mean(jnp.square(rows.astype(jnp.float32)))

    def step(weights: list[jax.Array], rows: jax.Array) -> list[jax.Array]:
        gradients = jax.grad(loss)(weights, rows)
        return [each - 1e-3 * by for each, by in zip(weights, gradients, strict=True)]

    run = jax.jit(step)
    while True:
        for _ in range(8):
            weights = run(weights, rows)
        jax.block_until_ready(weights)
        yield 8


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
