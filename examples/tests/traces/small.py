#!/usr/bin/env python3
"""Writes small.trace, small.elf and small.csv: a trace, the functions of the traced kernel, and the sums.

The bytes are laid out after Windows' PERFINFO_TRACE_HEADER and payloads, and the ELF specification; the sums are
computed from the list below, not from the bytes.
"""
import os
import struct
from collections import defaultdict

HERE = os.path.dirname(os.path.abspath(__file__))
FUNCTIONS = {"alpha": (0x1000, 0x40), "beta": (0x1040, 0x20), "gamma": (0x2000, 0x100)}


def utf16(text):
    return text.encode("utf-16-le") + b"\0\0"


def record(hook, stamp, payload, marker=0xC0110002, extended=b""):
    return struct.pack("<IHHQ", marker, 16 + len(extended) + len(payload), hook, stamp) + extended + payload


def interval(hook, stamp, source, new, old, name=None):
    marker = 0xC0110003 if name else 0xC0110002
    return record(hook, stamp, struct.pack("<III", source, new, old) + (utf16(name) if name else b""), marker)


def sampled(stamp, thread, pc, count=1):
    return record(0x0F2E, stamp, struct.pack("<QIHBB", pc, thread, count, 0, 0))


def pmc(stamp, thread, pc, source):
    return record(0x0F2F, stamp, struct.pack("<QIHH", pc, thread, source, 0))


# Source, thread, address, interrupts, and the interval that was in force then (1: not told).
SAMPLES = [
    (0x00, 1, 0x1000, 1, 10_000),
    (0x00, 1, 0x103F, 3, 10_000),
    (0x00, 2, 0x1040, 1, 20_000),
    (0x00, 2, 0x205F, 2, 20_000),
    (0x00, 3, 0x2000, 1, 10_000),  # 32-bit
    (0x00, 1, 0x1010, 5, 10_000),  # collected
    (0x00, 2, 0x3000, 6, 10_000),  # collected; in no function
    (0x19, 2, 0x20FF, 1, 65_536),
    (0x19, 7, 0x1041, 1, 65_536),
    (0x1A, 7, 0x1000, 1, 1),
    (0x1B, 1, 0x2000, 1, 4_096),
    (0x1B, 1, 0x2000, 1, 8_192),
]
NAMES = {0x00: "Timer", 0x19: "Cycles\u00e9", 0x1A: "profile source 0x1A", 0x1B: "profile source 0x1B"}

TRACE = b"".join([
    interval(0x0F49, 0, 0x00, 10_000, 10_000, "Timer"),
    interval(0x0F49, 0, 0x19, 65_536, 65_536, "Cycles\u00e9"),
    record(0x0F30, 0, struct.pack("<I", 2) + utf16("TotalCycles") + utf16("CacheMisses")),
    sampled(100, 1, 0x1000),
    # Set before what follows was read from another processor's ring.
    interval(0x0F48, 500, 0x00, 20_000, 10_000),
    sampled(499, 1, 0x103F, 3),
    sampled(500, 2, 0x1040),
    sampled(700, 2, 0x205F, 2),
    record(0x0F2E, 300, struct.pack("<IIHBB", 0x2000, 3, 1, 0, 0), 0xC0100002),
    record(0x0F37, 450, struct.pack("<II", 2, 0xFFFFFFFF)
           + struct.pack("<QIHBB", 0x1010, 1, 5, 0, 0) + struct.pack("<QIHBB", 0x3000, 2, 6, 0, 0)),
    pmc(200, 2, 0x20FF, 0x19),
    pmc(900, 7, 0x1041, 0x19),
    pmc(210, 7, 0x1000, 0x1A),
    # Earlier than its first interval, and later.
    pmc(100, 1, 0x2000, 0x1B),
    pmc(400, 1, 0x2000, 0x1B),
    interval(0x0F48, 300, 0x1B, 8_192, 4_096),
    record(0x1820, 100, struct.pack("<QIIQQ", 100, 4, 1, 0x1000, 0x2010)),
    record(0x0524, 600, struct.pack("<IIbbBbbbbbII", 2, 1, 8, 9, 0, 0, 1, 1, 5, 0, 77, 0), 0xC0118202,
           struct.pack("<QQQ", 0x60, 111, 222)),
    record(0x0F47, 650, b"\1\2\3"),
    interval(0x0F4A, 1000, 0x00, 20_000, 20_000),
])


def function(pc):
    for name, (start, size) in FUNCTIONS.items():
        if start <= pc < start + size:
            return name
    return f"{pc:#x}"


def sums():
    found = defaultdict(lambda: [0, 0])
    for source, thread, pc, count, each in SAMPLES:
        for key in [(source, "source", ""), (source, "thread", str(thread)), (source, "function", function(pc))]:
            found[key][0] += count
            found[key][1] += count * each
    rank = {"source": 0, "thread": 1, "function": 2}
    order = sorted(found.items(), key=lambda row: (row[0][0], rank[row[0][1]], -row[1][1], -row[1][0], row[0][2]))
    rows = [f"0x{s:02x},{NAMES[s]},{by},{item},{n},{amount}" for (s, by, item), (n, amount) in order]
    return "\n".join(["source,name,by,item,samples,amount"] + rows) + "\n"


def elf():
    names, symbols = b"\0", bytes(24)
    for name, (start, size) in FUNCTIONS.items():
        symbols += struct.pack("<IBBHQQ", len(names), 0x12, 0, 1, start, size)
        names += name.encode() + b"\0"
    at = 64 + len(symbols)
    sections = at + len(names)
    header = b"\x7fELF\2\1\1" + bytes(9) + struct.pack(
        "<HHIQQQIHHHHHH", 2, 62, 1, 0x1000, 0, sections, 0, 64, 56, 0, 64, 4, 3)
    table = bytes(64)
    table += struct.pack("<IIQQQQIIQQ", 0, 1, 6, 0x1000, 0, 0x2000, 0, 0, 16, 0)
    table += struct.pack("<IIQQQQIIQQ", 0, 2, 0, 0, 64, len(symbols), 3, 1, 8, 24)
    table += struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, at, len(names), 0, 0, 1, 0)
    return header + symbols + names + table


for name, content in [("trace", TRACE), ("elf", elf()), ("csv", sums().encode())]:
    with open(os.path.join(HERE, "small." + name), "wb") as file:
        file.write(content)
