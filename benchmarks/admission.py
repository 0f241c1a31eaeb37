"""What admission adds to a container's start: the same runc command with and without the runtime.

    python benchmarks/admission.py [--rounds 20] [--standing 0]       (root, runc, busybox-static)
    python benchmarks/admission.py --count [--against CHECKOUT] [--standing 0]    (root, valgrind)

Each round starts three containers that end at once, one after another: by runc, by the runtime
with nothing asked, and by the runtime with a share of a simulated card asked. What is printed are
medians, and of what the runtime adds, the median of the differences within a round: in milliseconds
of the clock and of processors, which a busy machine stretches less. `--standing` many other
containers hold shares of the same cards meanwhile.

`--count` prints the instructions of one admission instead, which no other program changes:
callgrind counts the process that admits a container, from the start of its interpreter until it
would become the real runtime. `--against` counts another checkout too, which has been set up, and
prints the ratio. That measures whether start-up optimisations are worth their code; CONTRIBUTING.md
has the threshold.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from statistics import median

CARD = "[device]\nvendor = nvidia\nmodel = Card 32GB\nmemory = 32 GiB\n"


def bundle(directory: Path, root: Path, *command: str, asked: str | None) -> Path:
    """Make a bundle of busybox without what small build machines lack: cgroups, a network."""
    directory.mkdir()
    subprocess.run(["runc", "spec"], cwd=directory, check=True)
    path = directory / "config.json"
    config = json.loads(path.read_text())
    config["process"] |= {"terminal": False, "args": ["/bin/busybox", *command], "rlimits": []}
    config["process"]["env"] = ["PATH=/bin", *([f"HETERO={asked}"] if asked else [])]
    config["root"] = {"path": str(root), "readonly": True}
    spaces = config["linux"]["namespaces"]
    config["linux"]["namespaces"] = [space for space in spaces if space["type"] != "network"]
    mounts = config["mounts"]
    config["mounts"] = [mount for mount in mounts if mount["type"] not in ("mqueue", "cgroup")]
    path.write_text(json.dumps(config))
    return directory


def started(command: list[str]) -> tuple[float, float]:
    """Return the milliseconds a command takes, of the clock and of processors."""
    before, used = time.monotonic(), getrusage(RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    after, total = time.monotonic(), getrusage(RUSAGE_CHILDREN)
    processors = total.ru_utime + total.ru_stime - used.ru_utime - used.ru_stime
    return 1000 * (after - before), 1000 * processors


#: Runs the runtime as its script does (container/install.py), until it would become another
#: program. The script's `-I` would also ignore the hash seed, which makes counts repeatable.
UNTIL_EXEC = """
import os, sys
os.execve = lambda *_: os._exit(0)
del sys.path[0], sys.argv[0]
exec(compile(open(sys.argv[0]).read(), sys.argv[0], "exec"))
"""


def instructions(checkout: Path, *, standing: int) -> int:
    """Return how many instructions the runtime of a checkout executes to admit one container.

    As many others as `standing` hold grants meanwhile, which are read.
    """
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "four.rack").write_text(4 * CARD)
        (place / "rootfs/etc").mkdir(parents=True)
        config = {
            "process": {"args": ["true"], "env": ["HETERO=count=1,mem=1Gi,core=10"]},
            "root": {"path": str(place / "rootfs")},
        }
        environ = {
            "PATH": os.environ["PATH"],
            "PYTHONHASHSEED": "0",
            "HETERO_RACK": str(place / "four.rack"),
            "HETERO_STATE": str(place / "state"),
        }
        admission = [
            *(str(checkout / ".venv/bin/python"), "-sS", "-c", UNTIL_EXEC),
            *(str(checkout / "hetero/container/runtime.py"), shutil.which("true") or ""),
            *("--root", str(place / "states"), "create", "--bundle", name),
        ]

        def admit(container: str, *before: str) -> tuple[int, str]:
            """Return the PID and what was written to the standard error."""
            (place / "config.json").write_text(json.dumps(config))
            program = subprocess.Popen(
                [*before, *admission, container],
                env=environ,
                cwd=checkout,
                text=True,
                stderr=subprocess.PIPE,
            )
            _, report = program.communicate()
            if program.returncode:
                sys.exit(f"admission: {container} was not admitted: {report}")
            return program.pid, report

        admit("ended")  # writes the byte code, and is swept as its runtime keeps no state of it
        for number in range(standing):
            admit(f"other{number}")
            (place / f"states/other{number}").mkdir(parents=True)
        output = f"--callgrind-out-file={place / 'counted'}"
        pid, report = admit("one", "valgrind", "--tool=callgrind", output)
    # Vendors' processes report, too, and before it ends.
    counted = re.search(rf"=={pid}== Collected : (\d+)", report)
    if not counted:
        sys.exit(f"admission: callgrind counted nothing: {report}")
    return int(counted[1])


def main() -> None:
    """Measure or count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--standing", type=int, default=0)
    parser.add_argument("--count", action="store_true", help="instructions, by callgrind")
    parser.add_argument("--against", type=Path, help="another checkout, set up, to count too")
    options = parser.parse_args()
    if options.count:
        count(options.against, standing=options.standing)
    else:
        measure(rounds=options.rounds, standing=options.standing)


def count(against: Path | None, *, standing: int) -> None:
    """Count the instructions of one admission, and print them."""
    if os.geteuid() != 0 or not shutil.which("valgrind"):
        sys.exit("admission: root and valgrind are needed")
    own = instructions(Path(__file__).resolve().parent.parent, standing=standing)
    print(f"an admission here: {own / 1e6:.1f} million instructions")
    if against:
        other = instructions(against.resolve(), standing=standing)
        print(f"in {against}: {other / 1e6:.1f} million; ratio {own / other:.3f}")


def measure(*, rounds: int, standing: int) -> None:
    """Measure what admission adds to a container's start, and print it."""
    runc = shutil.which("runc")
    busybox = shutil.which("busybox")
    if os.geteuid() != 0 or runc is None or busybox is None:
        sys.exit("admission: root, runc and busybox-static are needed")
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "four.rack").write_text(4 * CARD)
        os.environ |= {
            "HETERO_RACK": str(place / "four.rack"),
            "HETERO_STATE": str(place / "state"),
        }
        install = [sys.executable, "-m", "hetero.cli", "runtime", "install", "--yes"]
        subprocess.run([*install, "--prefix", name], check=True, stdout=subprocess.DEVNULL)
        root = place / "rootfs"
        for folder in ("bin", "dev", "proc", "sys", "etc", "usr"):
            (root / folder).mkdir(parents=True)
        shutil.copy(busybox, root / "bin/busybox")
        hetero = str(place / "usr/local/bin/hetero-runtime")
        states = ("--root", str(place / "states"))
        others = []
        try:
            for number in range(standing):
                others.append(f"other{number}")
                made = bundle(place / others[-1], root, "sleep", "1000", asked="count=1,mem=1Gi")
                started([hetero, *states, "create", "--bundle", str(made), others[-1]])
            kinds = (
                ("runc", runc, None),
                ("nothing asked", hetero, None),
                ("share asked", hetero, "count=1,mem=1Gi,core=10"),
            )
            took: dict[str, list[tuple[float, float]]] = {kind: [] for kind, _, _ in kinds}
            for number in range(-2, rounds):  # the first two fill the caches
                for kind, runtime, asked in kinds:
                    made = bundle(place / "one", root, "true", asked=asked)
                    times = started([runtime, *states, "run", "--bundle", str(made), "one"])
                    if number >= 0:
                        took[kind].append(times)
                    shutil.rmtree(made)
        finally:
            for other in others:
                started([runc, *states, "delete", "--force", other])
    print(f"{'':14}  start ms  added ms  processors ms  added ms")
    for kind, pairs in took.items():
        columns = [f"{kind:14}"]
        for unit, (start, added) in enumerate(((8, 8), (13, 8))):
            own_times = [pair[unit] for pair in pairs]
            bare = [pair[unit] for pair in took["runc"]]
            more = median(one - other for one, other in zip(own_times, bare, strict=True))
            columns.append(f"{median(own_times):{start}.1f}  {more:{added}.1f}")
        print("  ".join(columns))


if __name__ == "__main__":
    main()
