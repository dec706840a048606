#!/usr/bin/env python3
"""Compares `profile` with perf and samply on eight kinds of programs.

usage: compare.py [--profile FILE] [--verbose] [PROGRAM…]

Builds the programs beside this script, samples each by each tool 1000 times per second, and prints a line per program
and tool:

  one frame    the share of samples whose stack has one frame
  whole        the share whose stack ends at the first function of its thread, or in the kernel where that was not
               called by a program
  false        samples with a caller that the program's source does not have
  wait         the time from the program's end to the result, of the time until then
  difference   the largest difference of a function's own share from perf's, in points; a file without symbols is one
               function

What is not installed is skipped in a line. The status is 1 where `profile` has a false caller, or more stacks of one
frame than samply, or a function 10 points from perf.
"""

import argparse
import collections
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
PROGRAMS = HERE / "programs"
CALLERS_C = HERE.parent / "tests" / "programs" / "callers.c"

# A frame: the function's name, or the file's in brackets, and whether the kernel executes it.
Frame = collections.namedtuple("Frame", "name kernel")
# A stack, the outermost frame first, and its samples.
Stack = collections.namedtuple("Stack", "frames samples")

# The first functions of programs and threads, in C libraries, Go's runtime and the dynamic linker.
FIRST = re.compile(
    r"^(start|libc_start_(main|call_main)(_impl)?|start_thread|clone3?|dl_start(_user)?|"
    r"runtime\.(goexit|mstart|rt0_go|mcall|gogo|morestack|systemstack|asmcgocall|sigtramp|sigreturn)(\..*)?|"
    r"rt0_amd64.*|ret_from_fork.*|thread_start)$"
)

# The callers of functions of libgcc's that replace their return address, and then return to a handler: a stack from the
# moment between both is nobody's fault, and not judged.
AT_RESUME = {"Unwind_RaiseException": "cxa_throw", "Unwind_Resume": "descends"}

# The callers of each function of tests/programs/callers.c.
C_CALLERS = {
    "leaf": "middle",
    "middle": "middle|outer",
    "outer": "main",
    "interrupted": "main",
    # perf has no name for the first of them.
    "handler": r"restore_rt|\[libc.*",
    "in_handler": "handler",
    "asks": "main",
    "main": "libc_start_call_main",
}

# Functions that Go's runtime calls at any place of a program: to stop it, to grow its stack, at a signal.
GO_CALLERS = {
    "main.leaf": r"main\.middle",
    "main.middle": r"main\.(middle|outer)",
    "main.outer": r"main\.(main|inGoroutine)",
    "main.fills": r"main\.main",
    "main.main": r"runtime\.main",
    "main.inGoroutine": r"runtime\.goexit.*|main\.main\.func.*|main\.main\.gowrap.*",
    "runtime.mapassign_fast64": r"main\.fills",
}

# V8's functions of JavaScript's names; its builtins may be between them.
BUILTIN = r"Builtins_.*|BytecodeHandler:.*|Builtin:.*|Stub:.*"
JS_CALLERS = {
    "leaf": f"middle|{BUILTIN}",
    "middle": f"middle|outer|{BUILTIN}",
    "outer": f"rounds|{BUILTIN}",
    "sorts": f"rounds|{BUILTIN}",
}


class Missing(Exception):
    """A tool or a compiler that is not installed."""


def run(command, **options):
    """Runs a command whose output is of no interest, and fails where it does."""
    done = subprocess.run(
        [str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **options
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {done.stderr.strip().splitlines()[-1:] or done.returncode}")


def need(*tools):
    """Returns the first of these that is installed."""
    for tool in tools:
        if shutil.which(tool):
            return tool
    raise Missing(" or ".join(tools))


def c(options):
    def build(folder):
        run([need("cc", "gcc", "clang"), "-O2", "-g", *options, "-o", folder / "calls", CALLERS_C])
        return [folder / "calls"]

    return build


def cpp(folder):
    run([need("c++", "g++", "clang++"), "-O2", "-g", "-o", folder / "exceptions", PROGRAMS / "exceptions.cpp"])
    return [folder / "exceptions"]


def rust(folder):
    run([need("rustc"), "-O", "-g", "-o", folder / "calls-rs", PROGRAMS / "calls.rs"])
    return [folder / "calls-rs"]


def go(folder):
    environment = {**os.environ, "GOCACHE": str(folder / "cache"), "GO111MODULE": "off"}
    run([need("go"), "build", "-o", folder / "calls-go", PROGRAMS / "calls.go"], env=environment)
    return [folder / "calls-go"]


def node(folder):
    # Function names for profilers, and each function a frame of its own.
    return [need("node", "nodejs"), "--perf-basic-prof", "--no-turbo-inlining", PROGRAMS / "calls.js"]


def python(folder):
    return [shutil.which("python3", path="/usr/bin") or need("python3"), PROGRAMS / "calls.py"]


def make(folder):
    need("c++")
    source = PROGRAMS / "make" / "part.cpp"
    return [need("make"), "-B", "-C", folder, "-f", PROGRAMS / "make" / "Makefile", f"SOURCE={source}"]


CPP_CALLERS = {
    "computes": "clean_up|throws|catches",
    "clean_up": r"descends|Guard::~Guard",
    "throws": "descends",
    "descends": "descends|catches",
    "catches": "rounds",
    "rounds": "main",
    "main": "libc_start_call_main",
    "cxa_throw": "throws",
}
RUST_CALLERS = {
    "leaf": "work|in_thread",
    "work": "dispatches",
    "dispatches": "rounds",
    "sorts": "rounds",
    "rounds": "main",
    "threaded": "main",
}
EIGHT = {
    "C": (c(["-fno-omit-frame-pointer"]), C_CALLERS),
    "C, no frame pointers": (c(["-fomit-frame-pointer"]), C_CALLERS),
    "C++, exceptions": (cpp, CPP_CALLERS),
    "Rust": (rust, RUST_CALLERS),
    "Python": (python, {}),
    "Go": (go, GO_CALLERS),
    "Node": (node, JS_CALLERS),
    "make": (make, {}),
}


def clean(name):
    """Returns a function's name without arguments, versions, paths of Rust's crates, marks of V8's, and the underscores
    that it begins with, of which samply takes one."""
    script = re.match(r"(?:JS|LazyCompile|Function|Script):[~*^+']*(\S*)", name)
    if script:
        return script.group(1) or "(anonymous)"
    name = re.sub(r"@@?[A-Z].*$", "", name).lstrip("_")
    name = re.sub(r"^<calls::\w+ as [^>]*>::", "", name)
    name = re.sub(r"^calls::|::h[0-9a-f]{16}$", "", name)
    return name.split("(")[0] if not name.startswith(("(", "[")) and "::" not in name else name


def of_firefox(profile, symbols):
    """The stacks of a profile in Firefox' format; `symbols` are samply's beside it."""
    found = collections.Counter()
    # Names by the file's name and ID, and the address.
    names = {}
    if symbols:
        for library in symbols["data"]:
            table = library["symbol_table"]
            names[library["debug_name"], library["debug_id"].replace("-", "").upper()] = {
                address: symbols["string_table"][table[place]["symbol"]]
                for address, place in library["known_addresses"]
            }
    for thread in profile["threads"]:
        strings = thread["stringArray"] if "stringArray" in thread else profile["shared"]["stringArray"]
        frames, functions, resources = thread["frameTable"], thread["funcTable"], thread["resourceTable"]
        stacks = {}

        def frame(number):
            function = frames["func"][number]
            name = strings[functions["name"][function]]
            resource = functions["resource"][function]
            library = profile["libs"][resources["lib"][resource]] if resource >= 0 else None
            kernel = "[kernel" in name or name.endswith("(kernel)") or bool(library and "kernel" in library["name"])
            if library and symbols:
                identity = library["debugName"], library["breakpadId"][:32].upper()
                known = names.get(identity) or names.get((identity[0], library["breakpadId"].upper())) or {}
                name = known.get(frames["address"][number], f"[{library['name']}]")
            return Frame(re.sub(r" \(kernel\)$", "", clean(name)), kernel)

        def stack(number):
            if number not in stacks:
                prefix = thread["stackTable"]["prefix"][number]
                place = thread["stackTable"]["frame"][number]
                before = stack(prefix) if prefix is not None else ()
                # An inlined function is no frame of its own.
                inlined = frames["inlineDepth"][place] > 0
                stacks[number] = before if inlined else before + (frame(place),)
            return stacks[number]

        samples = thread["samples"]
        for place, number in enumerate(samples["stack"]):
            if number is not None:
                weight = samples["weight"][place] if samples.get("weight") else 1
                # samply has nodes of its own for the process and the thread's idle time.
                found[stack(number)] += weight
    return [Stack(frames, count) for frames, count in found.items()]


def of_script(text):
    """The stacks that `perf script` prints."""
    found, frames = collections.Counter(), []
    line_of_frame = re.compile(r"^\s+[0-9a-f]+ (.*?) \((.*)\)$")
    for line in text.splitlines():
        match = line_of_frame.match(line)
        if match:
            name, file = match.groups()
            kernel = file.startswith("[kernel") or file.endswith(".ko")
            if name == "[unknown]":
                name = f"[{os.path.basename(file) or 'anonymous memory'}]"
            frames.append(Frame(clean(name), kernel))
        elif not line.strip() and frames:
            found[tuple(reversed(frames))] += 1
            frames = []
    if frames:
        found[tuple(reversed(frames))] += 1
    return [Stack(frames, count) for frames, count in found.items()]


def by_profile(command, folder, profile):
    file = folder / "profile.json"
    run([profile, "--quiet", "--firefox", file, "--", *command], cwd=folder)
    return of_firefox(json.loads(file.read_text()), None)


def by_perf(command, folder, _):
    perf, file = need("perf"), folder / "perf.data"
    run([perf, "record", "-q", "-e", "cpu-clock", "-F", "1000", "--call-graph", "dwarf,16384", "-o", file, "--"]
        + command, cwd=folder)
    script = subprocess.run(
        [perf, "script", "--no-inline", "-F", "comm,pid,ip,sym,dso", "-i", str(file)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace", check=True,
    )
    file.unlink()
    return of_script(script.stdout)


def by_samply(command, folder, _):
    file = folder / "samply.json"
    samply = [need("samply"), "record", "--save-only", "--unstable-presymbolicate", "--rate", "1000", "-o", file, "--"]
    level = pathlib.Path("/proc/sys/kernel/perf_event_paranoid")
    if os.geteuid() == 0 and int(level.read_text()) > 1 and shutil.which("unshare"):
        # Without a PMU samply refuses at this level, root too: it reads 1 in a mount namespace of its own.
        (folder / "level").write_text("1")
        mount = f'mount --bind "{folder}/level" {level} && exec "$@"'
        samply = ["unshare", "--mount", "sh", "-c", mount, "sh"] + samply
    run(samply + command, cwd=folder)
    symbols = file.with_suffix(".syms.json")
    return of_firefox(json.loads(file.read_text()), json.loads(symbols.read_text()))


TOOLS = {"profile": by_profile, "perf": by_perf, "samply": by_samply}


def shares(stacks):
    """The own shares of functions, by name; those of the kernel's are one."""
    found, all_of_them = collections.Counter(), sum(stack.samples for stack in stacks)
    for frames, samples in stacks:
        found["[kernel]" if frames[-1].kernel else frames[-1].name] += 100 * samples / max(all_of_them, 1)
    return found


def false_callers(stacks, known):
    """The pairs of a caller and a function that the source does not have, and their samples."""
    found = collections.Counter()
    for frames, samples in stacks:
        of_program = [frame.name for frame in frames if not frame.kernel]
        pairs = [*zip(of_program, of_program[1:])]
        if of_program[-1:] and of_program[-1] in AT_RESUME or any(
            AT_RESUME.get(function, caller) != caller for caller, function in pairs
        ):
            continue
        wrong = set()
        for caller, function in zip(frames, frames[1:]):
            callers = known.get(function.name)
            if callers and not re.fullmatch(callers, caller.name):
                wrong.add((caller.name, function.name))
        for pair in wrong:
            found[pair] += samples
    return found


def is_whole(frames):
    return frames[0].kernel or any(FIRST.match(frame.name) for frame in frames)


def facts(stacks, known):
    """The row of the table, without the difference."""
    samples = sum(stack.samples for stack in stacks)
    share = lambda has: 100 * sum(stack.samples for stack in stacks if has(stack.frames)) / max(samples, 1)
    wrong, ends = false_callers(stacks, known), collections.Counter()
    for frames, count in stacks:
        if not is_whole(frames):
            ends[frames[0].name] += count
    return {
        "samples": samples,
        "one": share(lambda frames: len(frames) == 1 and not frames[0].kernel),
        "whole": share(is_whole),
        "false": sum(wrong.values()),
        "pairs": wrong,
        "shares": shares(stacks),
        "ends": ends,
    }


def difference(one, other):
    """The largest difference of shares of two tools, and whose it is; what either has no name for is left out."""
    named = [name for name in {*one, *other} if name in one and name in other]
    return max(((abs(one[name] - other[name]), name) for name in named), default=(0, ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", default=HERE.parent.parent / "target" / "release" / "profile", type=pathlib.Path)
    parser.add_argument("--verbose", action="store_true", help="false callers, first frames and shares")
    parser.add_argument("program", nargs="*", help=", ".join(f"{name!r}" for name in EIGHT))
    arguments = parser.parse_args()
    profile = arguments.profile.resolve()
    if not profile.exists():
        sys.exit(f"no {profile}: cargo build --release --bin profile")
    failures, missing = [], set()
    print(f"{'program':21} {'tool':8} {'samples':>7} {'one frame':>9} {'whole':>7} {'false':>6} {'wait':>6}  difference")
    for name in arguments.program or EIGHT:
        build, known = EIGHT[name]
        with tempfile.TemporaryDirectory() as folder:
            folder, rows = pathlib.Path(folder), {}
            try:
                command = [str(word) for word in build(folder)]
            except (Missing, RuntimeError) as reason:
                print(f"skipped: {name}: {reason} is not installed" if isinstance(reason, Missing)
                      else f"skipped: {name}: {reason}")
                continue
            ended = folder / "ended"
            timed = ["sh", "-c", '"$@"; date +%s.%N >"$0"', str(ended), *command]
            for tool, sample in TOOLS.items():
                begin = time.time()
                try:
                    stacks = sample(timed, folder, profile)
                    end = float(ended.read_text())
                    rows[tool] = facts(stacks, known) | {"wait": 100 * (time.time() - end) / (end - begin)}
                except Missing as reason:
                    missing.add(str(reason))
                except (RuntimeError, OSError, ValueError, KeyError, subprocess.CalledProcessError) as error:
                    print(f"skipped: {name} by {tool}: {type(error).__name__}: {error}")
                    if tool == "profile":
                        failures.append(f"{name}: {error}")
        for tool, row in rows.items():
            points, function = difference(row["shares"], rows.get("perf", row)["shares"])
            told = f"{points:4.1f} {function}" if tool != "perf" and "perf" in rows else ""
            print(f"{name:21} {tool:8} {row['samples']:7} {row['one']:7.1f} % {row['whole']:5.1f} % {row['false']:6}"
                  f" {row['wait']:4.0f} %"
                  f"  {told}", flush=True)
            if arguments.verbose:
                for pair, samples in row["pairs"].most_common(5):
                    print(f"    false: {pair[0]} -> {pair[1]}: {samples}")
                for first, samples in row["ends"].most_common(5):
                    print(f"    ends at: {first}: {samples}")
                print("    shares:", ", ".join(f"{name} {share:.1f}" for name, share in row["shares"].most_common(6)))
            if tool == "profile" and "perf" in rows and points > 10:
                failures.append(f"{name}: {function} is {points:.1f} points from perf")
        if "profile" in rows:
            if rows["profile"]["false"]:
                failures.append(f"{name}: {rows['profile']['false']} samples with a false caller")
            if "samply" in rows and rows["profile"]["one"] > rows["samply"]["one"] + 1:
                failures.append(f"{name}: more stacks of one frame than samply has")
    for tool in sorted(missing):
        print(f"skipped: {tool} is not installed")
    for failure in failures:
        print(f"failed: {failure}")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
