#!/bin/sh
# Runs benchmarks/pods.py on a real Kubernetes of one node, on this machine's card or on simulated ones.
#
#   benchmarks/pods.sh pack LAB DIR
#       puts all that is needed into DIR: LAB is the folder of a lab.py for a late Kubernetes, whose programs
#       are in $KUBE136_ASSETS, else in ~/.cache/hetero/kubernetes-1.36. On Debian bookworm with runc,
#       containernetworking-plugins, busybox-static, iproute2, patchelf and xz-utils.
#       What is not this project's is packed once, in 6 minutes; the rest each time, in 20 seconds.
#   benchmarks/pods.sh run DIR dra|classic STEPS [OPTIONS]
#       on a bare x86-64 machine with root, Python 3.12, openssl and xz, without a network. Leaves nothing
#       running. What is unpacked stays in /tmp/hetero-pods for the next call.
set -eu

here=$(cd "$(dirname "$0")/.." && pwd)

pack() {
    lab=$(cd "$1" && pwd)
    mkdir -p "$2"
    out=$(cd "$2" && pwd)
    t=$(mktemp -d)
    trap 'rm -rf "$t"' EXIT
    cp "$lab/lab.py" "$lab/images.py" "$out/"
    if [ ! -e "$out/others.tar.xz" ]; then
        mkdir -p "$t/others/bin/lib" "$t/others/site" "$t/wheels"
        cd "$t/others/bin"
        "$lab/lab.py" assets .
        rm .lock
        cp -L /usr/sbin/runc /usr/sbin/ip /bin/busybox /usr/lib/cni/bridge /usr/lib/cni/host-local /usr/lib/cni/loopback .
        ldd ip runc | awk '/=> \//{print $3}' | grep -v /libc.so | sort -u | xargs -I{} cp -L {} lib/
        # The linker reads $ORIGIN.
        # shellcheck disable=SC2016
        patchelf --force-rpath --set-rpath '$ORIGIN/lib' ip runc
        python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
            --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
            -d "$t/wheels" -c "$here/constraints.txt" grpcio protobuf cryptography cffi msgspec attrs cattrs click pluggy nvidia-ml-py
        for wheel in "$t"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$t/others/site"; done
        find "$t/others/site" -name '*.so' -exec strip --strip-unneeded {} +
        cd "$t"
        # One dictionary for all: the programs in Go have much in common.
        tar --sort=name --owner=0 --group=0 -c others | xz --x86 --lzma2=preset=9e,dict=512MiB -T1 >draft.xz
        mv draft.xz "$out/others.tar.xz"
    fi
    make -s -C "$here" native deploy/build/hetero-supervisor
    python3 -m pip install -q --no-deps --no-compile --target "$t/hetero" \
        "$here" "$here/limiters" "$here/simulator" "$here/vendors/nvidia" "$here/benchmarks"
    cp "$here/deploy/build/hetero-supervisor" "$t/hetero"
    tar -C "$t" --sort=name --owner=0 --group=0 -c hetero | xz -9 >"$out/hetero.tar.xz"
    du -sm "$out"
}

run() {
    pack=$(cd "$1" && pwd)
    shift
    work=/tmp/hetero-pods
    mkdir -p "$work"
    [ -d "$work/others" ] || tar -C "$work" -xJf "$pack/others.tar.xz"
    rm -rf "$work/hetero"
    tar -C "$work" -xJf "$pack/hetero.tar.xz"
    cp "$work/hetero/hetero-supervisor" "$work/others/bin" # beside kube-scheduler: pods see this folder
    export LAB="$work/lab" KUBE136_ASSETS="$work/others/bin" PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
    # What this machine's Python has is its own: the wheels of the pack are for 3.12.
    python3 -c 'import hetero.kube.agent.agent, yaml' 2>/dev/null || export PYTHONPATH="$work/hetero:$work/others/site"
    trap 'python3 "$pack/lab.py" down; rm -rf "$LAB"' EXIT
    python3 "$pack/lab.py" up 1
    python3 "$pack/lab.py" exec timeout "${SECONDS_AT_MOST:-170}" python3 "$here/benchmarks/pods.py" "$@"
}

case ${1:-} in
pack | run) "$@" ;;
*)
    sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
