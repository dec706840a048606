#!/usr/bin/env bash
# Threads in the interrupt's place under ThreadSanitizer. Needs a standard library that is built for it:
# from Debian's rustc-web and rust-web-src, and a clang of the same LLVM for the sanitizer's own part.
set -euo pipefail
cd "$(dirname "$0")"
packages=(rustc-web rust-web-src clang-22 libclang-rt-22-dev)
if ! dpkg -s "${packages[@]}" >/dev/null 2>&1; then
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null ||
        ! { apt-get update -qq && apt-get install -y --no-install-recommends "${packages[@]}"; } \
            >/dev/null 2>&1; then
        echo "skipped: ThreadSanitizer: no ${packages[*]}"
        exit 0
    fi
fi
export RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1
export RUSTFLAGS="-Zsanitizer=thread -Zexternal-clangrt -Clinker=clang-22 -Clink-arg=-fsanitize=thread"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/tsan"
test=(cargo test -Zbuild-std --target x86_64-unknown-linux-gnu --test threads -- --nocapture)
"${test[@]}"
if found=$(SEEDED=1 "${test[@]}" 2>&1) || ! grep -q "ThreadSanitizer: data race" <<<"$found"; then
    echo "a seeded race was not found"
    exit 1
fi
