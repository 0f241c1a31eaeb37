"""A serving engine as a process: it stays up and is asked whenever it is told until when.

    python -m hetero_benchmarks.engine NAME --memory BYTES [--cards N] [--sleeps]

With --cards each layer is split over so many cards; with --sleeps the engine gives its memory back
and takes it again before it serves (vLLM's sleep mode).

It says {"ready": true, "cache_tokens": N} once it serves. A line of input is a load and the times
between which it is measured, and the answer is a line of figures:

    {"per_second": RATE or null, "clients": N, "seed": N, "start": TIME, "end": TIME}

Its weights are made up and prompts are token ids, so it needs no file.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from attrs import frozen

from hetero_benchmarks.rates import Window
from hetero_benchmarks.serving import Answer, Load, ask, figures

#: A model of 1.1 billion parameters, of TinyLlama's shape.
MODEL: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
#: Seconds of saturation before it is ready: allocators and caches settle.
WARM_UP = 2.0
_SET_PARENT_DEATH_SIGNAL = 1

if __name__ == "__mp_main__":
    # A process of the engine's own, which would outlive one that was killed, and hold the card.
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


@frozen
class Engine:
    """What answers, and how many tokens its KV cache holds; None: it has none."""

    answer: Answer
    cache_tokens: int | None


@frozen(kw_only=True)
class Setup:
    """What an engine is started with: bytes of each card to take, and on how many cards.

    One that `sleeps` gives its memory back and takes it again before it serves.
    """

    memory: int
    cards: int = 1
    sleeps: bool = False

    def words(self) -> list[str]:
        """Return the options that say so."""
        sleeps = ["--sleeps"] if self.sleeps else []
        return ["--memory", str(self.memory), "--cards", str(self.cards), *sleeps]


Start = Callable[[Setup], AbstractAsyncContextManager[Engine]]


@asynccontextmanager
async def vllm(setup: Setup) -> AsyncIterator[Engine]:
    """Serve with vLLM as its API server does, without HTTP."""
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform
    from vllm.sampling_params import RequestOutputKind
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM

    seen = current_platform.get_device_total_memory()
    # Always the same folder: what vLLM compiled for a model is kept by its path.
    model = Path(tempfile.gettempdir(), "hetero-benchmarks-model")
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(MODEL))
    llm = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=str(model),
            load_format="dummy",
            skip_tokenizer_init=True,
            gpu_memory_utilization=setup.memory / seen,
            tensor_parallel_size=setup.cards,
            enable_sleep_mode=setup.sleeps,
            disable_log_stats=True,
        ),
        usage_context=UsageContext.OPENAI_API_SERVER,
    )
    number = 0

    async def answer(prompt: Sequence[int], tokens: int) -> AsyncIterator[int]:
        nonlocal number
        number += 1
        wanted = SamplingParams(
            max_tokens=tokens,
            temperature=0,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        async for output in llm.generate({"prompt_token_ids": prompt}, wanted, str(number)):
            yield len(output.outputs[0].token_ids)

    cache = llm.vllm_config.cache_config
    if setup.sleeps:
        await llm.sleep(level=1)
        await llm.wake_up()
    try:
        yield Engine(answer, cache.kv_cache_size_tokens or cache.num_gpu_blocks * cache.block_size)
    finally:
        llm.shutdown()


@asynccontextmanager
async def transformers(setup: Setup) -> AsyncIterator[Engine]:
    """Serve with transformers' continuous batching."""
    import torch
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        ContinuousBatchingConfig,
        GenerationConfig,
    )

    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(**MODEL), dtype=torch.bfloat16, attn_implementation="sdpa"
        )
    free = torch.cuda.mem_get_info()[0]
    part = (setup.memory - torch.cuda.memory_reserved()) / free
    with model.eval().continuous_batching_context_manager(
        generation_config=GenerationConfig(do_sample=False, eos_token_id=-1),
        continuous_batching_config=ContinuousBatchingConfig(max_memory_percent=min(part, 0.8)),
    ) as manager:
        number = 0

        async def answer(prompt: Sequence[int], tokens: int) -> AsyncIterator[int]:
            nonlocal number
            number += 1
            outputs = asyncio.Queue[Any]()
            manager.register_result_handler(str(number), outputs.put_nowait)
            manager.add_request(list(prompt), str(number), max_new_tokens=tokens, streaming=True)
            came = 0
            while True:
                output = await outputs.get()
                if output.error:
                    raise RuntimeError(output.error)
                if len(output.generated_tokens) > came:
                    yield len(output.generated_tokens) - came
                    came = len(output.generated_tokens)
                if output.is_finished():
                    return

        while manager.batch_processor is None:
            await asyncio.sleep(0.1)
        yield Engine(answer, manager.batch_processor.cache.num_pages)


#: Seconds until the first token and between others of the simulated engine, which takes so many
#: requests at once.
FIRST_S, NEXT_S, SLOTS = 0.02, 0.002, 16


@asynccontextmanager
async def simulated(setup: Setup) -> AsyncIterator[Engine]:
    """Answer at known times without a card."""
    slots = asyncio.Semaphore(SLOTS)

    async def answer(_: Sequence[int], tokens: int) -> AsyncIterator[int]:
        async with slots:
            at = time.monotonic() + FIRST_S
            for _number in range(tokens):
                await asyncio.sleep(at - time.monotonic())
                yield 1
                at += NEXT_S

    yield Engine(answer, setup.memory // 1024)


ENGINES: Mapping[str, Start] = {"vllm": vllm, "transformers": transformers, "simulated": simulated}


def command(name: str, setup: Setup) -> tuple[str, ...]:
    """Return the command that serves with this engine."""
    return (sys.executable, "-m", "hetero_benchmarks.engine", name, *setup.words())


async def serve(start: Start, setup: Setup, say: Callable[[dict[str, Any]], None]) -> None:
    """Serve loads until the input ends."""
    loop = asyncio.get_running_loop()
    async with start(setup) as engine:
        await ask(engine.answer, Load(), time.monotonic() + WARM_UP)
        say({"ready": True, "cache_tokens": engine.cache_tokens})
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            cue = json.loads(line)
            load = Load(**{name: cue[name] for name in ("per_second", "clients", "seed")})
            window = Window(cue["start"], cue["end"])
            say(figures(await ask(engine.answer, load, window.end), window))


def main() -> None:
    """Serve with the engine that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", choices=tuple(ENGINES))
    parser.add_argument("--memory", type=int, required=True, help="bytes of each card to take")
    parser.add_argument("--cards", type=int, default=1)
    parser.add_argument("--sleeps", action="store_true")
    asked = parser.parse_args()
    # Engines log to standard output: that is the protocol's alone.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    asyncio.run(
        serve(
            ENGINES[asked.name],
            Setup(memory=asked.memory, cards=asked.cards, sleeps=asked.sleeps),
            lambda answer: print(json.dumps(answer), file=answers, flush=True),
        )
    )


if __name__ == "__main__":
    main()
