#!/usr/bin/env bash
# Builds the kernel, and runs it.
#
#   run.sh build              builds, and prints the image's path
#   run.sh qemu OPTIONS…      in QEMU without KVM: there is no PMU, so by time alone; the options are
#                             QEMU's: -smp 2, -append quick, -M microvm
#   run.sh pvh OPTIONS…       the same, entered by PVH
#   run.sh defmt OPTIONS…     the same, with defmt frames on the serial line, decoded
#   run.sh monitor OPTIONS…   in examples/vmm, as an Intel and as an AMD machine; the options are the
#                             monitor's: --cpus 2, --count step --append exact
#
# Needs Rust by rustup with the target x86_64-unknown-none, or Debian's rustc-web and rust-web-src.
set -euo pipefail
target_dir="$(realpath -m "${CARGO_TARGET_DIR:-$(dirname "$0")/target}")"
[ -z "${CARGO_TARGET_DIR:-}" ] || export CARGO_TARGET_DIR="$target_dir"
cd "$(dirname "$0")"
target=x86_64-unknown-none
image="$target_dir/$target/release/pmu-kernel"

# build [cargo's options…]
build() {
    set -- --release --target $target --target-dir "$target_dir" "$@"
    if rustup target list --installed 2>/dev/null | grep -qx $target; then
        cargo build "$@"
    elif [ -x /usr/bin/rustc ] && [ -d /usr/lib/rustlib/src/rust/library/core ]; then
        # Debian's compiler has no core for the target, but its source; and no linker, but rustup's has.
        local linker
        linker="$(rustc --print sysroot)/lib/rustlib/x86_64-unknown-linux-gnu/bin/rust-lld"
        [ -x "$linker" ] || linker=ld.lld
        RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 CARGO_TARGET_X86_64_UNKNOWN_NONE_LINKER="$linker" \
            cargo build -Zbuild-std=core -Zbuild-std-features=compiler-builtins-mem "$@"
    else
        echo "run.sh: neither the target $target (rustup target add $target)" \
            "nor Debian's rustc-web and rust-web-src" >&2
        exit 2
    fi
}

# qemu [QEMU's options…]: the kernel's serial line is on standard output.
qemu() {
    timeout "${TIMEOUT:-120}" qemu-system-x86_64 -accel tcg -display none -serial stdio -no-reboot \
        -device isa-debug-exit,iobase=0xf4,iosize=4 -kernel "$image" "$@" </dev/null
}

# good STATUS…: whether the first is the kernel's good end (0x10 · 2 + 1), and the others 0.
good() {
    if [ "$1" != 33 ]; then
        echo "run.sh: ended with status $1, not 33" >&2
        return 1
    fi
    shift
    for status in "$@"; do [ "$status" = 0 ] || return 1; done
}

command="${1:-}"
shift || true
case "$command" in
    build)
        build "$@"
        echo "$image"
        ;;
    qemu)
        build
        qemu "$@" && status=0 || status=$?
        good $status
        ;;
    pvh)
        build
        # Without the multiboot header's magic number, loaders take the other door.
        LC_ALL=C sed 's/\x02\xb0\xad\x1b/\x00\x00\x00\x00/' "$image" >"$image.pvh"
        image="$image.pvh"
        qemu "$@" && status=0 || status=$?
        good $status
        ;;
    defmt)
        build --features defmt
        cargo build --release --manifest-path decode/Cargo.toml --target-dir "$target_dir"
        set +e
        qemu "$@" | "$target_dir/release/pmu-kernel-decode" "$image" | tee "$image.txt"
        good "${PIPESTATUS[@]}" && grep -qx "end good" "$image.txt"
        ;;
    monitor)
        build
        cd ../..
        for pmu in intel:version=4,gp=8,fixed=3,width=48,full-width amd:v2,counters=6; do
            cargo run --release --bin vmm -- \
                --kernel "$image" --timeout "${TIMEOUT:-300}" --pmu "$pmu" "$@" && status=0 || status=$?
            good $status
        done
        ;;
    *)
        sed -n '2,13s/^# \{0,1\}//p' run.sh >&2
        exit 2
        ;;
esac
