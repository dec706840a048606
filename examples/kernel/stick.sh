#!/usr/bin/env bash
# Writes an image to a stick: stick.sh IMAGE DEVICE
#
# Refuses a device that is not removable, has anything mounted, swapped on or mapped, or is smaller than the image; names
# what is left, and asks. STICK_ROOT is the root of /sys, /proc and /dev: a test's are made up.
set -euo pipefail
root="${STICK_ROOT:-}"
image="$1" device="$2"

refuse() {
    echo "stick.sh: refused: $device $1" >&2
    exit 3
}

# word FILE: its first word, or nothing.
word() {
    local word=
    [ ! -r "$1" ] || read -r word _ <"$1" || true
    echo "$word"
}

[ -r "$image" ] || { echo "stick.sh: $image cannot be read" >&2; exit 2; }
path="$(realpath -e "$device" 2>/dev/null)" || refuse "is not there"
name="${path#"$root"/dev/}"
case "$name" in */* | "" | "$path") refuse "is not a device of /dev" ;; esac
block="$root/sys/class/block/$name"
[ -e "$block" ] || refuse "is not a block device"
[ ! -e "$block/partition" ] || refuse "is a partition: name the whole stick"
[ "$(word "$block/removable")" = 1 ] || refuse "is not removable"
[ "$(word "$block/ro")" = 0 ] || refuse "is write-protected"
size=$(word "$block/size") # in units of 512 bytes, whatever the device's are
[ $((${size:-0} * 512)) -ge "$(stat -Lc %s "$image")" ] || refuse "is smaller than the image"
for part in "$block" "$block"/"$name"*; do
    [ -e "$part/dev" ] || continue
    part_name=$(basename "$part") number=$(word "$part/dev")
    for holder in "$part"/holders/*; do
        [ ! -e "$holder" ] || refuse "is in use: $part_name is part of $(basename "$holder")"
    done
    # Mounted by its number, or, where the file system has one of its own, by its name.
    while read -r _ _ mounted _ place rest; do
        source=${rest##* - }
        read -r _ source _ <<<"$source"
        if [ "$mounted" = "$number" ] || [ "$source" = "/dev/$part_name" ]; then
            refuse "is in use: $part_name is mounted at $place"
        fi
    done <"$root/proc/self/mountinfo"
    while read -r swap _; do
        [ "$swap" != "/dev/$part_name" ] || refuse "is in use: $part_name is swap"
    done <"$root/proc/swaps"
done

echo "$device: $(word "$block/device/vendor") $(cat "$block/device/model" 2>/dev/null || echo "of unknown model")," \
    "$((size / 2048)) MiB. Everything on it will be lost."
read -r -p "Type its name ($name) to write the image: " answer || true
[ "$answer" = "$name" ] || refuse "was not confirmed"
dd if="$image" of="$path" bs=1M conv=fsync,notrunc status=none
echo "stick.sh: wrote $image to $device"
