#!/usr/bin/env bash
# Tries stick.sh on devices of a made-up /sys, /proc and /dev: each refusal, and that it then wrote nothing.
set -euo pipefail
cd "$(dirname "$0")"
root=$(realpath "$(mktemp -d)")
trap 'rm -r "$root"' EXIT
export STICK_ROOT="$root"
head -c 4096 /dev/urandom >"$root/image"

# make: a stick sdx of 1 MiB with one partition, of which nothing is in use.
make() {
    rm -rf "$root"/{sys,proc,dev}
    mkdir -p "$root/sys/class/block/sdx"/{device,holders,sdx1/holders} "$root/proc/self" "$root/dev"
    cd "$root/sys/class/block/sdx"
    echo 1 >removable
    echo 0 >ro
    echo 2048 >size
    echo 8:16 >dev
    echo 8:17 >sdx1/dev
    echo 1 >sdx1/partition
    echo Maker >device/vendor
    echo Stick >device/model
    ln -s sdx/sdx1 ../sdx1
    cd - >/dev/null
    echo '22 1 8:1 / / rw - ext4 /dev/sda1 rw' >"$root/proc/self/mountinfo"
    echo 'Filename Type Size Used Priority' >"$root/proc/swaps"
    head -c 1M /dev/zero >"$root/dev/sdx"
    head -c 1M /dev/zero >"$root/dev/sdx1"
}

# refused REASON [DEVICE [ANSWER]]: with this reason, and nothing was written.
refused() {
    local said status=0 device="${2-$root/dev/sdx}"
    said=$(echo "${3-sdx}" | ./stick.sh "$root/image" "$device" 2>&1) || status=$?
    if [ $status != 3 ] || [[ "$said" != *"$1"* ]]; then
        echo "stick-test.sh: not refused with '$1' but $status: $said" >&2
        exit 1
    fi
    if [ -f "$root/dev/sdx" ] && ! cmp -s "$root/dev/sdx" <(head -c 1M /dev/zero); then
        echo "stick-test.sh: wrote though refused: $1" >&2
        exit 1
    fi
    make
}

block="$root/sys/class/block/sdx"
make
echo 0 >"$block/removable"; refused "is not removable"
rm "$block/removable"; refused "is not removable"
echo 1 >"$block/ro"; refused "is write-protected"
echo 7 >"$block/size"; refused "is smaller than the image"
rm "$block/size"; refused "is smaller than the image"
refused "is a partition" "$root/dev/sdx1"
refused "is not there" "$root/dev/sdy"
: >"$root/dev/sdz"; refused "is not a block device" "$root/dev/sdz"
: >"$root/file"; refused "is not a device of /dev" "$root/file"
echo '30 22 8:17 / /media/stick rw - vfat /dev/sdx1 rw' >>"$root/proc/self/mountinfo"
refused "sdx1 is mounted at /media/stick"
echo '30 22 8:16 / /mnt rw - vfat /dev/sdx rw' >>"$root/proc/self/mountinfo"
refused "sdx is mounted at /mnt"
echo '30 22 0:45 / /mnt rw shared:1 - btrfs /dev/sdx1 rw' >>"$root/proc/self/mountinfo"
refused "sdx1 is mounted at /mnt"
echo '/dev/sdx1 partition 1 0 -2' >>"$root/proc/swaps"; refused "sdx1 is swap"
: >"$block/sdx1/holders/dm-0"; refused "sdx1 is part of dm-0"
: >"$block/holders/md0"; refused "sdx is part of md0"
refused "was not confirmed" "$root/dev/sdx" yes
refused "was not confirmed" "$root/dev/sdx" ""

# A stick of which nothing is in use, by a link too, is written from its beginning on, and keeps its length.
ln -s "$root/dev/sdx" "$root/link"
for device in "$root/dev/sdx" "$root/link"; do
    make
    said=$(echo sdx | ./stick.sh "$root/image" "$device")
    [[ "$said" == *"Maker Stick, 1 MiB"* ]]
    cmp <(cat "$root/image"; head -c $((1048576 - 4096)) /dev/zero) "$root/dev/sdx"
done
echo "stick-test.sh: good"
