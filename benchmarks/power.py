"""Measures what a card model's row of limiters/timeshare/power_models.c needs, and prints the row.

    python3 benchmarks/power.py [--job hetero-job-cuda] [--device N] [--json FILE]

Takes three minutes on a card that nobody else uses, and changes none of its settings. Needs
PyTorch, NumPy, attrs and pynvml (nvidia-ml-py), and nothing of hetero installed. Without --job it
does not measure what switching between processes costs.

1. The meter: copies run in slices of random length; the filter and lateness are those that explain
   the samples of nvmlDeviceGetSamples best.
2. Power-limited programs: each alone, then in slices for several parts of the time.
3. Unconstrained programs beside products that keep the card at its limit: their speed as a power of
   the clock.
4. One process of one-warp kernels, and four at once.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path

import numpy
import pynvml
import torch
from attrs import asdict
from hetero_benchmarks import power_fit
from hetero_benchmarks.power_fit import Beside, Drawn, Meter, Point, Samples, TimeSlice

Launch = Callable[[], object]

CARD = torch.device("cuda")
#: Seconds before a measurement counts: a power limit acts within about one.
SETTLE = 1.2
#: How many launches are queued at a time.
DEPTH = 3
#: The parts of the time for which power-limited programs run in slices.
DUTIES = (0.3, 0.6, 0.8, 0.9)

_started = time.monotonic()


class Recorder(threading.Thread):
    """Keeps what the driver tells of power and clocks while programs run."""

    def __init__(self, device: int) -> None:
        super().__init__(daemon=True)
        pynvml.nvmlInit()
        # PyTorch counts the devices that CUDA_VISIBLE_DEVICES leaves, NVML all of them.
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())
        self._most_mhz = pynvml.nvmlDeviceGetMaxClockInfo(self._handle, pynvml.NVML_CLOCK_SM)
        self.limit_w = pynvml.nvmlDeviceGetEnforcedPowerLimit(self._handle) / 1e3
        self._samples: dict[int, float] = {}  # watts by milliseconds of the monotonic clock
        self._clocks: list[tuple[float, float]] = []
        self.start()

    def run(self) -> None:
        """Ask every 20 ms for the clock, every half second for the samples."""
        while True:
            self._read_samples()
            for _ in range(25):
                why = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)
                mhz = pynvml.nvmlDeviceGetClockInfo(self._handle, pynvml.NVML_CLOCK_SM)
                capped = why & pynvml.nvmlClocksThrottleReasonSwPowerCap
                self._clocks.append((now_ms(), mhz / self._most_mhz if capped else 1.0))
                time.sleep(0.02)

    def _read_samples(self) -> None:
        read = pynvml.nvmlDeviceGetSamples(self._handle, pynvml.NVML_TOTAL_POWER_SAMPLES, 0)
        behind_ms = time.time() * 1e3 - now_ms()
        for sample in read[1]:
            stamp_ms = int(sample.timeStamp / 1e3 - behind_ms)
            self._samples[stamp_ms] = sample.sampleValue.uiVal / 1e3

    def samples(self, start_ms: float, end_ms: float) -> Samples:
        """Return the samples that were taken in that time."""
        time.sleep(0.7)  # until the last ones are read
        # The two clocks drift by a little, so a sample that is read twice may have two stamps.
        kept: list[tuple[int, float]] = []
        for stamp, watts in sorted(self._samples.copy().items()):
            if start_ms <= stamp < end_ms and not (kept and stamp - kept[-1][0] <= 1):
                kept.append((stamp, watts))
        return numpy.array([s for s, _ in kept], float), numpy.array([w for _, w in kept], float)

    def clock(self, start_ms: float, end_ms: float) -> float:
        """Return the mean clock of that time, of its maximum."""
        return float(numpy.mean([clock for at, clock in self._clocks if start_ms <= at < end_ms]))


def now_ms() -> float:
    """Return the monotonic clock."""
    return time.monotonic() * 1e3


def say(text: str) -> None:
    """Print a line, with the seconds since the start."""
    print(f"{time.monotonic() - _started:4.0f} s  {text}", flush=True)


# ---------------------------------------------------------------------------------------- programs


def product(side: int, *, zeros: float = 0.0) -> Launch:
    """Multiply bf16 matrices: the more of their elements are zero, the less power that takes."""
    left, right = (torch.randn(side, side, device=CARD, dtype=torch.bfloat16) for _ in "ab")
    if zeros:
        left[torch.rand(side, side, device=CARD) < zeros] = 0
    out = torch.empty_like(left)
    return lambda: torch.mm(left, right, out=out)


def streams() -> Launch:
    """Multiply on four streams at once."""
    own = torch.cuda.current_stream()
    apart = [torch.cuda.Stream() for _ in range(4)]
    made = [
        tuple(torch.randn(2048, 2048, device=CARD, dtype=torch.bfloat16) for _ in "abc")
        for _ in apart
    ]

    def launch() -> None:
        for stream, (left, right, out) in zip(apart, made, strict=True):
            stream.wait_stream(own)
            with torch.cuda.stream(stream):
                for _ in range(8):
                    torch.mm(left, right, out=out)
        for stream in apart:
            own.wait_stream(stream)

    return launch


def copies() -> Launch:
    """Copy from one place on the card to another."""
    source = torch.zeros(1 << 28, device=CARD, dtype=torch.uint8)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def additions() -> Launch:
    """Replay a graph of 100 small kernels."""
    numbers = torch.zeros(1 << 22, device=CARD)
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        for _ in range(100):
            numbers.add_(1.0)
    return lambda: recorded.replay()


def convolutions() -> Launch:
    """Convolve in fp32, as training does."""
    images = torch.randn(32, 64, 56, 56, device=CARD)
    layer = torch.nn.Conv2d(64, 64, 3, padding=1).to(CARD).requires_grad_(False)
    return lambda: layer(images)


def cycles() -> Launch:
    """Spin for a number of clock cycles: exactly as fast as the clock."""
    return lambda: torch.cuda._sleep(1_000_000)


def one_slice(launch: Launch, seconds: float) -> TimeSlice:
    """Keep the card busy for so long, and wait until it is done."""
    start, count = now_ms(), 0
    queued: deque[torch.cuda.Event] = deque()
    while now_ms() - start < seconds * 1e3:
        launch()
        count += 1
        event = torch.cuda.Event()
        event.record()
        queued.append(event)
        if len(queued) == DEPTH:
            queued.popleft().synchronize()
    torch.cuda.synchronize()
    return start, now_ms(), count


def in_slices(launch: Launch, duty: float, seconds: float) -> list[TimeSlice]:
    """Run for a part of the time, in slices as long as the limiter's."""
    slices: list[TimeSlice] = []
    end = now_ms() + seconds * 1e3
    while now_ms() < end:
        start, stop, count = one_slice(launch, random.uniform(0.005, 0.015))
        slices.append((start, stop, count))
        time.sleep((stop - start) / 1e3 * (1 - duty) / duty)
    return slices


def settled(slices: Sequence[TimeSlice]) -> list[TimeSlice]:
    """Return the slices after the power limit had acted."""
    return [one for one in slices if one[0] >= slices[0][0] + SETTLE * 1e3]


def speed_of(slices: Sequence[TimeSlice]) -> float:
    """Return launches a second of the slices."""
    return 1e3 * sum(one[2] for one in slices) / sum(one[1] - one[0] for one in slices)


# ------------------------------------------------------------------------------------ measurements


def measure_meter(recorder: Recorder) -> tuple[Meter, Drawn]:
    """Find how the driver samples power, and what the card draws at rest."""
    launch = copies()
    slices: list[TimeSlice] = []
    end = now_ms() + 15e3
    while now_ms() < end:
        slices.append(one_slice(launch, random.uniform(0.003, 0.03)))
        time.sleep(random.uniform(0.003, 0.06))
    samples = recorder.samples(slices[0][0], slices[-1][1])
    meter, drawn = power_fit.find_meter(slices, samples)
    say(f"{len(samples[0])} samples: {meter}, {drawn}")
    return meter, drawn


def measure_limited(recorder: Recorder, meter: Meter, idle_w: float) -> Iterator[Point]:
    """Run programs that want more power than there is, alone and in slices."""
    programs = {
        "gemm8192": product(8192),
        "gemm8192, a third zeros": product(8192, zeros=1 / 3),
        "gemm4096": product(4096),
        "streams": streams(),
    }
    for name, launch in programs.items():
        one_slice(launch, SETTLE)
        alone = one_slice(launch, 3)
        watts = recorder.samples(alone[0], alone[1])[1]
        yield _point(recorder, name, 1.0, [alone], watts, drawn_w=0.0)
        for duty in DUTIES:
            slices = in_slices(launch, duty, SETTLE + 2.5)
            samples = recorder.samples(slices[0][0], slices[-1][1])
            late = samples[0] >= slices[0][0] + SETTLE * 1e3
            kept = samples[0][late], samples[1][late]
            drawn = power_fit.explain(slices, kept, meter, idle_w=idle_w)
            say(f"    {drawn}")
            yield _point(recorder, name, duty, settled(slices), kept[1], drawn.drawn_w)


def _point(
    recorder: Recorder,
    name: str,
    duty: float,
    slices: Sequence[TimeSlice],
    watts: power_fit.Floats,
    drawn_w: float,
) -> Point:
    point = Point(
        program=name,
        duty=duty,
        drawn_w=drawn_w,
        mean_w=float(watts.mean()),
        clock=recorder.clock(slices[0][0], slices[-1][1]),
        speed=speed_of(slices),
    )
    say(str(point))
    return point


def measure_beside(recorder: Recorder) -> Iterator[Beside]:
    """Run programs that want less, at full clocks and beside products."""
    products = product(8192)
    programs = {
        "copies": copies(),
        "additions": additions(),
        "convolutions": convolutions(),
        "cycles": cycles(),
    }
    for name, launch in programs.items():
        full = speed_of(settled(in_slices(launch, 0.5, SETTLE + 1.5)))
        slices: list[TimeSlice] = []
        end = now_ms() + (SETTLE + 3) * 1e3
        while now_ms() < end:
            one_slice(products, random.uniform(0.005, 0.015))
            slices.append(one_slice(launch, random.uniform(0.005, 0.015)))
        slices = settled(slices)
        clock = recorder.clock(slices[0][0], slices[-1][1])
        light_program = Beside(program=name, speed=speed_of(slices) / full, clock=clock)
        say(f"{light_program}, exponent {light_program.exponent}")
        yield light_program


def measure_switching(job: Path) -> float:
    """Return the part of the card that four processes at once lose by the driver's switching."""

    def run(count: int, *arguments: str) -> list[dict[str, float]]:
        words = [str(job), "--seconds", "4", "--warmup", "2", *arguments]
        started = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(count)]
        return [json.loads(each.communicate()[0].splitlines()[-1]) for each in started]

    (alone,) = run(1, "--kernel-us", "500")
    together = sum(each["rate"] for each in run(4, "--iterations", f"{alone['iterations']:.0f}"))
    say(f"one process made {alone['rate']:.1f} kernels a second, four made {together:.1f}")
    return 1 - together / alone["rate"]


def main() -> None:
    """Measure, and print the row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--job", type=Path, help="hetero-job-cuda, for what switching costs")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--json", type=Path, help="where to write every figure")
    asked = parser.parse_args()
    torch.cuda.set_device(asked.device)
    torch.set_grad_enabled(False)
    device = torch.cuda.get_device_name(asked.device)
    recorder = Recorder(asked.device)
    driver = pynvml.nvmlSystemGetDriverVersion()
    say(f"{device}, driver {driver}, limit {recorder.limit_w:.0f} W")

    meter, drawn = measure_meter(recorder)
    points = list(measure_limited(recorder, meter, drawn.idle_w))
    light_programs = list(measure_beside(recorder))
    switching = measure_switching(asked.job) if asked.job else None

    limit_w = recorder.limit_w
    held = power_fit.held_at_limit(points, limit_w)
    available_w = held * limit_w - drawn.idle_w
    slowdown = power_fit.fit_slowdown(points, available_w)
    for ratio, faster in power_fit.slowed(points, available_w):
        say(f"wanted {ratio:.3f} of what there is: {faster:.3f}, fitted {slowdown.at(ratio):.3f}")
    when = datetime.now(timezone.utc).date()
    document = {
        "device": device,
        "driver": str(driver),
        "limit_w": limit_w,
        "meter": asdict(meter),
        "copies": asdict(drawn),
        "points": [asdict(point) for point in points],
        "beside": [asdict(each) for each in light_programs],
        "slowdown": asdict(slowdown),
        "switching": switching,
    }
    if asked.json:
        asked.json.write_text(json.dumps(document, indent=1) + "\n")
    print()
    print(
        power_fit.row(
            device,
            f"benchmarks/power.py, {when}, driver {driver}; the slowdown to {slowdown.error:.3f}.",
            meter=meter,
            idle=drawn.idle_w / limit_w,
            held=held,
            slowdown=slowdown,
            light_programs=light_programs,
            switching=switching,
        )
    )


if __name__ == "__main__":
    main()
