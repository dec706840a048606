#!/usr/bin/env bash
# Builds the kernel, and runs it.
#
#   run.sh build              builds, and prints the image's path
#   run.sh qemu OPTIONS…      in QEMU without KVM: there is no PMU, so by time alone; the options are
#                             QEMU's: -smp 2, -append quick, -M microvm
#   run.sh pvh OPTIONS…       the same, entered by PVH
#   run.sh qemu-arm OPTIONS…  the kernel for Arm (../kernel-arm) in QEMU, which has counters there; the options are QEMU's:
#                             -smp 2, -cpu max, -machine gic-version=2, -machine virtualization=on
#   run.sh defmt OPTIONS…     the same as qemu, with defmt frames on the serial line, decoded
#   run.sh image              builds the image of a stick, for BIOS and UEFI, and prints its path
#   run.sh boot               boots the image in QEMU by BIOS and by UEFI (or the one named), and compares the screen's
#                             codes with the serial line's report
#   run.sh check              its kernel in examples/vmm, on six PMUs, and with each deviation that a guest can see
#   run.sh stick DEVICE       writes the image to a removable device, if you say so
#   run.sh monitor OPTIONS…   in examples/vmm, as an Intel and as an AMD machine; the options are the
#                             monitor's: --cpus 2, --count step --append exact, --append check
#
# The image needs Debian's grub-pc-bin, grub-efi-amd64-bin, xorriso and mtools; uefi needs ovmf.
# Needs Rust by rustup with the target x86_64-unknown-none (aarch64-unknown-none-softfloat for Arm), or Debian's rustc-web
# and rust-web-src.
set -euo pipefail
target_dir="$(realpath -m "${CARGO_TARGET_DIR:-$(dirname "$0")/target}")"
[ -z "${CARGO_TARGET_DIR:-}" ] || export CARGO_TARGET_DIR="$target_dir"
cd "$(dirname "$0")"
target=x86_64-unknown-none
image="$target_dir/$target/release/pmu-kernel"
stick="$target_dir/pmu-stick.img"

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
            CARGO_TARGET_AARCH64_UNKNOWN_NONE_SOFTFLOAT_LINKER="$linker" \
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

# qemu_arm [QEMU's options…]: processors count their instructions with -icount alone. The status is the kernel's.
qemu_arm() {
    timeout "${TIMEOUT:-60}" qemu-system-aarch64 -machine virt,gic-version=3 -cpu cortex-a72 -icount shift=0 \
        -nic none -display none -serial stdio -semihosting-config enable=on,target=native -kernel "$image" "$@" </dev/null
}

# make_image: the stick's image, for BIOS and UEFI.
make_image() {
    build >&2
    local files="$target_dir/stick"
    rm -rf "$files"
    mkdir -p "$files/boot/grub"
    cp "$image" "$files/boot/pmu-kernel"
    cp image/grub.cfg "$files/boot/grub/grub.cfg"
    grub-mkrescue -o "$stick" "$files" >"$target_dir/stick.log" 2>&1 || {
        cat "$target_dir/stick.log" >&2
        return 1
    }
    # Without one of GRUB's folders, it makes an image for the other firmware alone, and says nothing.
    local folder
    for folder in i386-pc x86_64-efi; do
        [ -d "/usr/lib/grub/$folder" ] || { echo "run.sh: no /usr/lib/grub/$folder" >&2; return 1; }
    done
}

# boot bios|uefi: boots the image until the kernel's end, and dumps the screen.
boot() {
    local out="$target_dir/boot-$1" machine=(-M q35 -m 512 -smp 4 -vga std) waited
    rm -f "$out".*
    if [ "$1" = uefi ]; then
        cp /usr/share/OVMF/OVMF_VARS_4M.fd "$out.vars"
        machine+=(-drive if=pflash,format=raw,readonly=on,file=/usr/share/OVMF/OVMF_CODE_4M.fd
            -drive "if=pflash,format=raw,file=$out.vars")
    fi
    # The screen stays as it is: nothing ends this machine.
    {
        for waited in $(seq $((${TIMEOUT:-120} * 2))); do
            ! grep -qs "^end good" "$out.serial" || break
            sleep 0.5
        done
        echo "screendump $out.ppm"
        sleep 3
        echo quit
    } | timeout $((${TIMEOUT:-120} + 30)) qemu-system-x86_64 -accel tcg -display none -monitor stdio -no-reboot \
        -serial "file:$out.serial" -drive "file=$stick,format=raw" "${machine[@]}" >"$out.monitor" ||
        echo "run.sh: QEMU ended early" >&2
    # Two of the four processors stand still: they survived the NMI that the other answered.
    grep -qs "^nmi processors 1 answered 1" "$out.serial" && grep -qs "^end good" "$out.serial" || {
        cat "$out.serial" >&2
        echo "run.sh: the image did not come to its end by $1" >&2
        return 1
    }
    # What was read back from the screen is what went over the serial line.
    cargo build --release --manifest-path decode/Cargo.toml --target-dir "$target_dir"
    "$target_dir/release/pmu-kernel-screen" "$out.ppm" >"$out.codes"
    local from
    for from in codes serial; do
        cargo run --quiet --manifest-path ../../Cargo.toml -p pmu-hwcheck --bin hwcheck -- \
            --decode "$out.$from" >"$out.$from.json"
        grep '"id"' "$out.$from.json" >"$out.$from.claims"
    done
    diff "$out.codes.claims" "$out.serial.claims"
    echo "run.sh: $1: $(wc -l <"$out.codes.claims") claims on the screen and on the serial line"
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
    qemu-arm)
        target=aarch64-unknown-none-softfloat
        image="$target_dir/$target/release/pmu-kernel-arm"
        build --manifest-path ../kernel-arm/Cargo.toml
        qemu_arm "$@"
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
    image)
        make_image
        echo "$stick"
        ;;
    boot)
        make_image
        [ $# != 0 ] || set -- bios uefi
        for firmware in "$@"; do boot "$firmware"; done
        ;;
    check)
        build
        PMU_KERNEL="$image" cargo test --release --manifest-path ../../Cargo.toml -p pmu-vmm --test stick -- \
            --nocapture --test-threads 1
        ;;
    stick)
        [ $# = 1 ] || { echo "usage: run.sh stick DEVICE" >&2; exit 2; }
        make_image
        ./stick.sh "$stick" "$1"
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
        sed -n '2,21s/^# \{0,1\}//p' run.sh >&2
        exit 2
        ;;
esac
