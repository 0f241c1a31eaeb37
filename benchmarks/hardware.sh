#!/bin/sh
# Measures hetero on this machine's card, within a given time and without a network.
#
#   OUT=DIR [WHEELS=DIR] benchmarks/hardware.sh [SECONDS] STEPS [OPTIONS OF ISOLATION, LONG, FULL OR GANGS]
#
# SECONDS  how long it may take in all (540); a step that would pass it is stopped, and says so
# STEPS    all, or some of doctor,inventory,memory,overhead,isolation in that order; or long: kernels of
#          5 ms to seconds; or full: does anybody wait while the card could work; or gangs: programs
#          of several cards
# OUT      where hardware.txt (everything shown) and one JSON file a step are written; isolation.jsonl
#          has each run of isolation as it ended, should it be cut off
# WHEELS   a folder of wheels of what python3 lacks (cattrs, click, hatchling, trove-classifiers, …)
#
#   OUT=/tmp/out benchmarks/hardware.sh 480 all --jobs resnet18,gemm --shares 30,60
#
# It needs gcc, make, and a python3 with pip and what is to be measured (PyTorch, CuPy, JAX). Nothing
# is installed outside a temporary folder. It exits with 1 if any step failed, and names those.
set -eu

case ${1:-} in
[0-9]*[!0-9]*)
    echo "hardware.sh: $1 is no number of seconds" >&2
    exit 2
    ;;
[0-9]*) ;;
?*) set -- 540 "$@" ;;
esac
if [ $# -lt 2 ] || [ -z "${OUT:-}" ]; then
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
end=$(($(date +%s) + $1))
steps=$2
shift 2
[ "$steps" = all ] && steps=doctor,inventory,memory,overhead,isolation
for name in $(echo "$steps" | tr , ' '); do
    case $name in
    doctor | inventory | memory | overhead | isolation | long | full | gangs) ;;
    *)
        echo "hardware.sh: no step $name: doctor, inventory, memory, overhead, isolation, long, full or gangs" >&2
        exit 2
        ;;
    esac
done

here=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$OUT" || exit 2
OUT=$(cd "$OUT" && pwd)
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
failed=

# Runs one step for as long as time is left, shows it and keeps what it showed.
step() {
    name=$1
    shift
    left=$((end - $(date +%s)))
    printf '\n== %s (%s s left)\n$ %s\n' "$name" "$left" "$*" | tee -a "$OUT/hardware.txt"
    if [ "$left" -lt 5 ]; then
        echo "not run: no time is left" | tee -a "$OUT/hardware.txt"
        failed="$failed $name"
        return
    fi
    # A pipe into tee would hide the exit status, so the status travels by a file.
    {
        timeout --signal=INT --kill-after=10 "$left" "$@" 2>&1 && status=0 || status=$?
        echo "$status" >"$site/status"
    } | tee -a "$OUT/hardware.txt"
    status=$(cat "$site/status")
    if [ "$status" -ne 0 ]; then
        echo "$name: exit status $status" | tee -a "$OUT/hardware.txt"
        failed="$failed $name"
    fi
}

python3 --version >"$OUT/hardware.txt"
cat "$OUT/hardware.txt"
pip="python3 -m pip install --quiet --no-index --no-deps --upgrade --target $site/python"
if [ -n "${WHEELS:-}" ]; then
    $pip "$WHEELS"/*.whl
fi
export PYTHONPATH="$site/python"
python3 -c 'import attrs, cattrs, click, hatchling, pluggy, pynvml, rich' || {
    echo "hardware.sh: python3 lacks that: put its wheel and those it needs into \$WHEELS" >&2
    exit 2
}
make -C "$here/limiters"
make -C "$here/simulator"
$pip --no-build-isolation "$here" "$here/limiters" "$here/simulator" "$here/vendors/nvidia" "$here/benchmarks"
# Away from the checkout, so that what was installed is what runs.
cd "$site"

for name in $(echo "$steps" | tr , ' '); do
    case $name in
    doctor) step doctor python3 -m hetero.cli doctor ;;
    inventory)
        step inventory python3 -m hetero.cli inventory
        python3 -m hetero.cli inventory --json >"$OUT/inventory.json" || failed="$failed inventory.json"
        ;;
    memory | overhead) step "$name" python3 -m hetero.cli bench "$name" --json "$OUT/$name.json" ;;
    isolation)
        step isolation python3 -m hetero.cli bench isolation --json "$OUT/isolation.json" \
            --record "$OUT/isolation.jsonl" "$@"
        ;;
    long | full) step "$name" python3 "$here/benchmarks/$name.py" --json "$OUT/$name.json" "$@" ;;
    gangs)
        left=$((end - $(date +%s) - 5))
        step gangs python3 "$here/benchmarks/gangs.py" --json "$OUT/gangs.json" --within "$((left > 1 ? left : 1))" "$@"
        ;;
    esac
done

if [ -n "$failed" ]; then
    echo "failed:$failed" | tee -a "$OUT/hardware.txt"
    exit 1
fi
