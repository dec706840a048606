#!/usr/bin/env bash
# Linux in the monitor: a program counts and samples with perf_event_open in user space, and ends the machine.
#
#   run.sh run KERNEL OPTIONS…   runs KERNEL, a vmlinux with what `config` says; the options are the monitor's:
#                                --pmu amd:v2, --cpus 2
#   run.sh check KERNEL          the same as each of ten machines, and compares what they print with what must be
#   run.sh hwcheck KERNEL [OPTIONS…]
#                                runs `hwcheck` in the place of that program: on each of four machines, where the
#                                model agrees, and on one with an inverted bit, which it names; or with the options
#   run.sh accesses KERNEL       traces operations of perf events on each of six machines, and prints how often each
#                                accesses the PMU's registers, as tests/data/linux_accesses.csv has it
#   run.sh handlers KERNEL EXAMPLE
#                                steps the handler of an NMI in Linux and in EXAMPLE, the image of examples/kernel, and
#                                prints how many instructions each has for an interrupt of one event, without a ring
#   run.sh build DIRECTORY       builds such a kernel from Debian's linux-source, and prints its path; needs gcc,
#                                make, flex, bison, bc, libelf-dev, xz-utils, and about 4 minutes of processor time
#
# Needs Rust and a C compiler, and `hwcheck` also root and cpio. TIMEOUT is a guest's limit in seconds (600; 1800 of
# `hwcheck`, which tries 176 sources on AMD).
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
root="$(cd "$here/../../.." && pwd)"
target_dir="$(realpath -m "${CARGO_TARGET_DIR:-$root/target}")"

# The machines of `check`: a PMU, how many processors, and further options. A fetch is sampled at least once in 2^20: at
# a low frequency its interrupts leave the program some time on a slow host.
machines=(
    "intel:version=2,full-width 1"
    "intel:version=5,full-width,lbr 1"
    "intel:version=5,full-width,pebs 1"
    "amd:core 1"
    "amd:v2,lbr 1"
    "intel:version=4,full-width 2"
    "amd:v2,ibs 2 --frequency 200"
    "intel:version=5,full-width,lbr,pebs 1"
    "amd:v2,lbr 2"
    "intel:version=5,full-width,fixed=4,topdown 1"
)

# The instructions that the kernel example's handler may have, in tenths of those of Linux'.
LIMIT=5

# The machines of `accesses`, by their names in its table. All have four general counters, but for the one with sampled
# ops, of which nothing else is measured.
traced=(
    "intel-2 intel:version=2,full-width"
    "intel-4 intel:version=4,full-width,lbr"
    "intel-5 intel:version=5,full-width,lbr,pebs"
    "amd-legacy amd:legacy"
    "amd-v2 amd:v2,counters=4,lbr"
    "amd-ibs amd:v2,counters=4,ibs"
)

usage() {
    sed -n '2,20s/^# \{0,1\}//p' "$0" >&2
    exit 2
}

# make_tools: builds the monitor, and the programs that are Linux' /init.
make_tools() {
    local program
    cargo build --quiet --release --manifest-path "$root/Cargo.toml" -p pmu-vmm --bin vmm
    for program in init operations; do
        "${CC:-cc}" -O1 -Wall -Wextra -static -nostdlib -ffreestanding -fno-stack-protector -fno-pie -no-pie \
            -o "$target_dir/linux-$program" "$here/$program.c"
    done
}

# make_hwcheck: builds `hwcheck` as a static program, and the initial RAM disk that has it.
make_hwcheck() {
    local folder="$target_dir/linux-hwcheck" host
    host=$(rustc -vV | sed -n 's/^host: //p')
    RUSTFLAGS="-C target-feature=+crt-static" cargo build --quiet --release --manifest-path "$root/Cargo.toml" \
        --target "$host" -p pmu-hwcheck --bin hwcheck
    # A kernel with noxsave saves no AVX registers, and the program may see by CPUID that the processor has them. glibc's
    # functions are told by init.c; no crate may look by itself.
    if nm -C "$target_dir/$host/release/hwcheck" 2>/dev/null | grep 'memchr::.*avx' >&2; then
        echo "run.sh: hwcheck has functions that take AVX where the processor has it" >&2
        return 1
    fi
    rm -rf "$folder"
    mkdir -p "$folder"/{dev,proc,sys}
    cp "$target_dir/linux-init" "$folder/init"
    cp "$target_dir/$host/release/hwcheck" "$folder/hwcheck"
    [ -e "$folder/dev/console" ] || mknod "$folder/dev/console" c 5 1
    (cd "$folder" && find . | cpio --quiet -o -H newc) >"$target_dir/linux-hwcheck.cpio"
}

# in_hwcheck KERNEL OPTIONS…: runs it, and prints what it says.
in_hwcheck() {
    disk=(--initrd "$target_dir/linux-hwcheck.cpio")
    TIMEOUT="${TIMEOUT:-1800}" run "$@"
}

# hwcheck KERNEL: the model agrees with the monitor's PMU; one bit that differs is named.
hwcheck() {
    local kernel="$1" machine output
    for machine in intel:version=2 intel:version=5,full-width amd:core amd:v2; do
        output=$(in_hwcheck "$kernel" --pmu "$machine" </dev/null) || true
        output=$(tr -d '\r' <<<"$output")
        if ! grep -q '^hwcheck ended with' <<<"$output"; then
            echo "$output"
            echo "run.sh: $machine: hwcheck did not come to its end in ${TIMEOUT:-1800} seconds" >&2
            return 1
        fi
        # A processor without fixed counters and global registers has three of the model's claims, and lacks the rest.
        if grep ' model\.' <<<"$output" | grep -qvE '^agrees|^not tried .*: the processor lacks it$' ||
            [ "$(grep -c '^agrees *model' <<<"$output")" -lt 3 ] ||
            grep -q '^disagrees' <<<"$output" || ! grep -q 'are as they were' <<<"$output"; then
            echo "$output"
            echo "run.sh: $machine: the model does not agree" >&2
            return 1
        fi
        grep -E '^(agrees|exact|inexact|not tried)' <<<"$output" | sed "s/^/$machine: /"
    done
    output=$(in_hwcheck "$kernel" --pmu intel:version=5,full-width --invert 0x187:18 </dev/null) || true
    grep 'RDMSR 0x187 (IA32_PERFEVTSELx)' <<<"$output" ||
        { echo "$output"; echo "run.sh: the inverted bit was not named" >&2; return 1; }
}

# What the initial RAM disk is.
disk=(--init "$target_dir/linux-init")

# run KERNEL OPTIONS…
run() {
    local kernel="$1" line="console=ttyS0 quiet"
    shift
    # In x2APIC mode Linux finds instruction-based sampling; the others are for xAPIC mode, where a second processor
    # does not come up with KVM's paravirtual IPIs.
    [[ "$*" == *ibs* ]] || line+=" nox2apic nopv"
    # What kvm-pvm's interpreter lacks, or has only by way of the monitor. Later kernels than 6.1 do not know nosmap.
    [ ! -e /sys/module/kvm_pvm ] || line+=" noxsave noinvpcid clearcpuid=smap,popcnt"
    # A host that is busy lets processors wait: that is no stall, and the ticks of that time are not made up for.
    line+=" rcupdate.rcu_cpu_stall_suppress=1 lapic=notscdeadline"
    "$target_dir/release/vmm" --kernel "$kernel" "${disk[@]}" --memory "${MEMORY:-64}" \
        --timeout "${TIMEOUT:-600}" --append "$line" "$@"
}

# compare PMU PROCESSORS SECONDS <OUTPUT: whether the program printed what must be true.
#
# Each processor counts more than 0; as many instructions as cycles, by the monitor's rate, but for a hundredth.
# No sample is lost, and each came by an NMI: there are at most as many samples as NMIs, and of NMIs at most a
# twentieth and two more, since one may find what another serviced. No sample is in the kernel, which the event does
# not count. A sample stands for a period of events or more. With branch records, samples of a loop have its branches
# alone, 16 or more, or a call stack: the program has looked at their order. With instruction-based sampling the program has looked at
# the addresses of the loop's samples; none is lost, each came by an NMI, and some have a data address. With precise records
# the program has looked at their addresses; each came by an NMI where the kernel asked for one, and with fewer otherwise.
compare() {
    tr -d '\r' | awk -v pmu="$1" -v processors="$2" -v seconds="$3" '
        function wrong(why) { print "run.sh: " pmu ": " why ": " $0; failed = 1; exit }
        function near(a, b) { return a - b <= (a + b) / 200 && b - a <= (a + b) / 200 }
        $3 == "counted" {
            counted++
            if (!($5 > 0 && $6 > 0 && $8 > 0 && $9 > 0)) wrong("a counter is 0")
            if (!near($5, $6) || !near($8, $9)) wrong("instructions are not as many as cycles")
            print
        }
        $3 == "sampled" {
            sampled++
            if ($10 < 150 || $12 == 0 || $16 != 0) wrong("too few samples, all elsewhere, or lost")
            if ($14 != 0) wrong("samples of the program are in the kernel")
            if ($20 < $10 || $20 > $10 + $10 / 20 + 2) wrong("samples are not as many as NMIs")
            if ($8 < ($10 - 1) * $6) wrong("fewer events than samples stand for")
            print
        }
        $3 == "branches" || $3 == "kernel-branches" || $3 == "calls" || $3 == "call-stack" {
            branches[$3]++
            least = $3 == "call-stack" ? 1 : 16
            if ($7 < 20 || $9 < least * $7 || $11 > $9) wrong("too few samples with branches")
            print
        }
        $3 == "no" && $4 == "branches" { without++ }
        $3 == "precise" {
            records++
            if ($8 < 150 || $12 != 0) wrong("too few precise samples, or lost")
            by_record = $4 == "by-record"
            if (by_record && ($14 < $6 || $14 > $6 + $6 / 20 + 2)) wrong("samples are not as many as NMIs")
            if (!by_record && 2 * $14 > $6) wrong("the records of a buffer came by an NMI each")
            print
        }
        $3 == "precise-cycles" {
            cycles++
            if ($8 < 150 || $12 != 0) wrong("too few precise samples of cycles, or lost")
            print
        }
        $3 == "no" && $4 == "precise" { without_records++ }
        $3 ~ /^ibs_/ && $4 == "sampled" {
            ops++
            if ($12 < 150 || $10 < $12 || $18 != 0) wrong("too few samples, or lost")
            if ($3 == "ibs_op" && $14 == 0) wrong("no sample has a data address")
            if ($20 < $10 || $20 > $10 + $10 / 20 + 2) wrong("samples are not as many as NMIs")
            print
        }
        $3 == "no" && $4 == "ibs_op" { without_ops++ }
        $3 ~ /^mem-/ && $4 == "sampled" {
            accesses++
            if ($12 < 150 || $14 != $12 || $16 != 0 || $18 != 0) wrong("too few samples, without address, or lost")
            print
        }
        $3 == "no" && $4 == "mem-loads" { without_accesses++ }
        $3 == "top-down" {
            top_down++
            # By the monitor'"'"'s rate an instruction retires from one of four slots, and the others wait for the back end.
            if (!near($7 * 255 / 63, $5) || $9 > 0 || $11 > 0 || !near($7 + $13, $5))
                wrong("the slots are not divided as they happen")
            print
        }
        $3 == "no" && $4 == "top-down" { without_top_down++ }
        /^end good$/ { good = 1 }
        END {
            if (failed) exit 1
            with = pmu ~ /lbr/ ? processors : 0
            with_records = pmu ~ /pebs/ ? processors : 0
            with_ops = pmu ~ /ibs/ ? processors : 0
            # AMD has no call stack.
            with_stack = pmu ~ /^amd/ ? 0 : with
            with_top_down = pmu ~ /topdown/ ? processors : 0
            if (!good || top_down != with_top_down || without_top_down != processors - with_top_down ||
                accesses != 2 * with_records || without_accesses != processors - with_records ||
                counted != processors || sampled != 2 * processors || branches["branches"] != with ||
                branches["kernel-branches"] != with || branches["calls"] != with || branches["call-stack"] != with_stack || cycles != 3 * with_records ||
                without != processors - with || ops != 3 * with_ops || without_ops != processors - with_ops ||
                records != 2 * with_records || without_records != processors - with_records) {
                print "run.sh: " pmu ": the program did not come to its end"
                exit 1
            }
            print pmu ", processors " processors ": good after " seconds " s"
        }'
}

# check KERNEL
check() {
    local machine pmu processors options output status
    for machine in "${machines[@]}"; do
        read -r pmu processors options <<<"$machine"
        SECONDS=0
        # Unquoted: several words, or none.
        # shellcheck disable=SC2086
        output=$(run "$1" --pmu "$pmu" --cpus "$processors" $options 2>&1 </dev/null) && status=0 || status=$?
        if [ "$status" != 33 ]; then
            echo "$output"
            echo "run.sh: $machine: ended with status $status, not 33" >&2
            return 1
        fi
        compare "$pmu" "$processors" "$SECONDS" <<<"$output" || { echo "$output"; return 1; }
    done
}

# accesses KERNEL: a table of what the operations of operations.c access.
accesses() {
    local kernel="$1" name pmu status output trace="$target_dir/linux-accesses.trace"
    disk=(--init "$target_dir/linux-operations")
    echo "# $(grep -aom 1 'Linux version [0-9.]*' "$kernel"), by examples/vmm/linux/run.sh accesses"
    echo "machine,operation,accesses"
    while read -r name pmu; do
        output=$(run "$kernel" --pmu "$pmu" --trace "msr=$trace" 2>&1 </dev/null) && status=0 || status=$?
        if [ "$status" != 33 ]; then
            echo "$output" >&2
            echo "run.sh: $name: ended with status $status, not 33" >&2
            return 1
        fi
        awk -v machine="$name" -f "$here/accesses.awk" "$trace"
    done < <(printf '%s\n' "${traced[@]}")
}

# usual PHASE TRACE: the number of instructions that most handlers of NMIs had, in a phase, or (-) in all.
usual() {
    printf '%d\n' "$(awk -v phase="$1" '
        $3 == "M" { now = $5 }
        $3 == "H" && (phase == "-" || now == phase) && ++times[$5] > times[most] { most = $5 }
        END { print most }' "$2")"
}

# handlers KERNEL EXAMPLE: Linux' event is that of the operation "single interrupt" (0xd); the other kernel's are those
# of its profiles. Neither its event nor its period changes what a handler executes.
handlers() {
    local kernel="$1" example="$2" pmu=intel:version=4,full-width trace="$target_dir/linux-handlers.trace" linux ours
    disk=(--init "$target_dir/linux-operations")
    run "$kernel" --pmu "$pmu" --trace "nmi=$trace" >/dev/null 2>&1 </dev/null || [ $? = 33 ]
    linux=$(usual 0xd "$trace")
    "$target_dir/release/vmm" --kernel "$example" --timeout "${TIMEOUT:-600}" --append "quick freeze" \
        --pmu "$pmu" --trace "nmi=$trace" >/dev/null 2>&1 || [ $? = 33 ]
    ours=$(usual - "$trace")
    echo "instructions of the handler of an NMI, one overflow: Linux $linux, the kernel example $ours"
    [ "$ours" -gt 0 ] && [ $((ours * 10)) -lt $((linux * LIMIT)) ]
}

# build DIRECTORY: unless it is there.
build() {
    local kernel="$1/vmlinux" source
    if [ ! -e "$kernel" ] || [ "$here/config" -nt "$kernel" ]; then
        source=$(find /usr/src -maxdepth 1 -name 'linux-source-*.tar.xz' | sort -V | tail -n 1)
        [ -n "$source" ] || { echo "run.sh: no /usr/src/linux-source-*.tar.xz" >&2; exit 2; }
        rm -rf "$1"
        mkdir -p "$1"
        tar -xf "$source" -C "$1" --strip-components 1
        # kvm-pvm never shows a guest the bit that declares the Debug Store. It shows the one of the 64-bit Debug Store,
        # which the kernel also demands.
        sed -i '/^static void init_intel/,/^}/s/boot_cpu_has(X86_FEATURE_DS))/boot_cpu_has(X86_FEATURE_DTES64))/' \
            "$1/arch/x86/kernel/cpu/intel.c"
        # A tick is long for kvm-pvm's interpreter: on a busy host, 100 per second leave the guest little else. 24 is
        # what another architecture offers.
        sed -i 's/default 100 if HZ_100/default 24 if HZ_100/' "$1/kernel/Kconfig.hz"
        {
            make -s -C "$1" KCONFIG_ALLCONFIG="$here/config" allnoconfig
            make -s -C "$1" -j "$(nproc)" vmlinux
        } >"$1/build.log" 2>&1 || { tail -n 20 "$1/build.log" >&2; exit 1; }
    fi
    echo "$kernel"
}

[ $# -ge 2 ] || usage
command="$1"
shift
case "$command" in
    build) build "$(realpath -m "$1")" ;;
    check) make_tools && check "$1" ;;
    accesses) make_tools && accesses "$1" ;;
    handlers) make_tools && handlers "$@" ;;
    hwcheck)
        make_tools
        make_hwcheck
        if [ $# -gt 1 ]; then in_hwcheck "$@"; else hwcheck "$1"; fi
        ;;
    run) make_tools && run "$@" ;;
    *) usage ;;
esac
