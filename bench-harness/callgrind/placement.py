#!/usr/bin/env python3
"""Counts what one placement takes over 2, 8 and 64 shards: instructions, atomics, cache lines, allocations and messages.

    placement.py PROGRAM [--update | --page | --sites]

PROGRAM is the built example `requests` of `wharf-bench`. It runs the connections, the port and the shards of the service in
one thread. Callgrind counts the functions `counted_connections` and `counted_shard` of it: all that a placement does from
the bytes of its frame to those of its reply.

    atomics       executed instructions that read and write memory at once: those with a `lock` prefix, `xchg` with memory,
                  and full fences. Callgrind counts each instruction, and objdump says which these are.
    cache lines   distinct lines of 64 bytes that are read or written. The simulated cache is empty when a request begins
                  (see bench-harness/src/rpc/cold.rs), so each line misses once. Two new lines at once, where a value lies
                  across both, are counted as one. Lines of the stack are not counted.
    allocations   calls that take memory from the allocator, or ask it for more.
    messages      commands that shards took. Each has one answer.

Fails if a figure is not within the tolerance of placement.txt, or if it grows with the number of shards. `--update` writes
a new placement.txt, `--page` also the table of a page, and `--sites` prints the functions with atomics.
"""

import concurrent.futures
import datetime
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BASELINE = pathlib.Path(__file__).with_name("placement.txt")
PAGE = ROOT / "docs/decisions/shards.md"
BEGIN, END = "<!-- placement -->\n", "<!-- end of placement -->\n"

SHARDS = (2, 8, 64)
NODES_PER_SHARD, REQUESTS = 400, 512
# One set of 1,024 lines, as in bench-harness/src/rpc/cold.rs. The other caches are of no interest.
CACHES = ("--I1=32768,8,64", "--D1=65536,1024,64", "--LL=1048576,16,64")
FUNCTIONS = ("counted_connections", "counted_shard")

# By figure: how far it may be from the baseline, and how much more it may be over more shards, in percent.
FIGURES = {
    "instructions": ("instructions", 3.0, 5.0),
    "atomics": ("atomics", 3.0, 3.0),
    "lines": ("cache lines", 5.0, 5.0),
    "allocations": ("allocations", 1.0, 1.0),
    "commands": ("commands", 1.0, 1.0),
}

# An instruction that is atomic for other processors: `xchg` between registers is not.
ATOMIC = re.compile(r"^\s*([0-9a-f]+):\t(?:\S+\s)*?(?:lock\b|mfence\b|xchg\w*\s[^#]*\()")

# A function that takes memory from the allocator. All calls go through these.
ALLOCATES = re.compile(r"__rust_(?:alloc|alloc_zeroed|realloc)$")


class Wrong(Exception):
    """Something that stops the count."""


def atomics_of(path):
    """Returns the addresses of the atomic instructions of a program or library."""
    command = ["objdump", "-d", "--no-show-raw-insn", path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace") as lines:
        found = {int(match[1], 16) for match in map(ATOMIC.match, lines.stdout) if match}
    if lines.returncode != 0:
        raise Wrong(f"{' '.join(command)} failed")
    return found


def read_costs(path):
    """Returns the events of a file of callgrind, and by object the cost of each instruction with its function."""
    events, costs, objects, function, is_call = [], {}, None, "?", False
    with open(path, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line.startswith("0x"):
                # The line after `calls=` has what the called function took, which is counted there.
                if not is_call:
                    address, _, *cost = line.split()
                    key = (int(address, 16), function)
                    before = objects.get(key)
                    cost = [int(number) for number in cost] + [0] * (len(events) - len(cost))
                    objects[key] = cost if before is None else [a + b for a, b in zip(before, cost)]
                is_call = False
            elif line.startswith("ob="):
                objects = costs.setdefault(line[3:].strip(), {})
            elif line.startswith("fn="):
                function = line[3:].strip()
            elif line.startswith("calls="):
                is_call = True
            elif line.startswith("events:"):
                events = line.split()[1:]
    return events, costs


def calls_of(of_object, functions):
    """Returns how often functions whose names match were called: so often, the first instruction of each was executed. The
    counts of calls in the file are of the whole run.
    """
    first = {}
    for (address, function), cost in of_object.items():
        if functions.search(function) and (function not in first or address < first[function][0]):
            first[function] = (address, cost[0])
    return sum(executed for _, executed in first.values())


def count(program, shards, scratch):
    """Returns the figures per placement over a number of shards, and the atomics by function."""
    out = f"{scratch}/callgrind.{shards}"
    command = ["valgrind", "--tool=callgrind", "--dump-instr=yes", "--compress-strings=no", "--compress-pos=no"]
    command += ["--cache-sim=yes", *CACHES, f"--callgrind-out-file={out}"]
    command += [f"--toggle-collect=*{name}*" for name in FUNCTIONS]
    command += [program, "least-fit", str(NODES_PER_SHARD * shards), str(shards), str(REQUESTS), "1", "cold"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise Wrong(f"{' '.join(command)}\n{run.stdout}{run.stderr}")
    source, requests, _, commands, refused = run.stdout.split()
    if int(refused) > 0:
        raise Wrong(f"{refused} placements were refused over {shards} shards: give more nodes")
    events, costs = read_costs(out)
    sums, sites, allocations = dict.fromkeys(events, 0), {}, 0
    for path, of_object in costs.items():
        atomics = atomics_of(path) if pathlib.Path(path).is_file() else set()
        allocations += calls_of(of_object, ALLOCATES)
        for (address, function), cost in of_object.items():
            for event, number in zip(events, cost):
                sums[event] += number
            if address in atomics:
                sites[function] = sites.get(function, 0) + cost[0]
    requests = int(requests)
    figures = {
        "instructions": sums["Ir"] / requests,
        "atomics": sum(sites.values()) / requests,
        "lines": (sums["D1mr"] + sums["D1mw"]) / requests,
        "allocations": allocations / requests,
        "commands": int(commands) / requests,
    }
    return source, figures, {name: number / requests for name, number in sites.items()}


def read_baseline():
    """Returns the figures by source of the shapes, number of shards and name."""
    lines = BASELINE.read_text(encoding="utf-8").splitlines() if BASELINE.exists() else []
    return {tuple(line.split()[:3]): float(line.split()[3]) for line in lines}


def write_baseline(source, counted):
    """Replaces the figures with shapes of this source."""
    kept = {key: number for key, number in read_baseline().items() if key[0] != source}
    kept |= {(source, str(shards), name): number for shards in counted for name, number in counted[shards].items()}
    lines = [f"{' '.join(key)} {number:.2f}\n" for key, number in kept.items()]
    BASELINE.write_text("".join(lines), encoding="utf-8")


def faults_of(source, counted):
    """Returns what is wrong with the figures."""
    faults, baseline = [], read_baseline()
    for name, (unit, tolerance, growth) in FIGURES.items():
        for shards in counted:
            now, before = counted[shards][name], baseline.get((source, str(shards), name))
            if before is None:
                print(f"{unit} over {shards} shards are not compared: there is no baseline for {source} shapes")
            # Half of the last written digit.
            elif abs(now - before) > before * tolerance / 100 + 0.005:
                faults.append(f"{now:.2f} {unit} over {shards} shards, and {before:.2f} before: mend it, or see why")
        most = counted[SHARDS[-1]][name]
        for fewer in SHARDS[:-1]:
            least = counted[fewer][name]
            if most > least * (1 + growth / 100):
                faults.append(f"{most:.2f} {unit} over {SHARDS[-1]} shards, and {least:.2f} over {fewer}: it grows")
    return faults


def write_page(source, counted):
    """Replaces the table of the page."""
    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    units = [unit for unit, _, _ in FIGURES.values()]
    rows = [f"| shards | {' | '.join(units)} |\n", "|---" * (1 + len(units)) + "|\n"]
    for shards, figures in counted.items():
        cells = [f"{figures[name]:,.{0 if name == 'instructions' else 1}f}" for name in FIGURES]
        rows.append(f"| {shards} | " + " | ".join(cells) + " |\n")
    origin = f"\nCommit {git('rev-parse', '--short=10', 'HEAD')}, {source} shapes, {datetime.date.today()}.\n"
    text = PAGE.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise Wrong(f"{PAGE} has no place for the table")
    PAGE.write_text(before + begin + "".join(rows) + origin + end + after, encoding="utf-8")


def main(arguments):
    """Counts, prints, and compares or writes."""
    if len(arguments) not in (1, 2) or arguments[1:] not in ([], ["--update"], ["--page"], ["--sites"]):
        raise Wrong(__doc__)
    option = arguments[1] if len(arguments) == 2 else ""
    with tempfile.TemporaryDirectory() as scratch, concurrent.futures.ThreadPoolExecutor(2) as two:
        runs = list(two.map(lambda shards: count(arguments[0], shards, scratch), SHARDS))
    source = runs[0][0]
    counted = {shards: figures for shards, (_, figures, _) in zip(SHARDS, runs)}
    for shards, figures in counted.items():
        told = [f"{figures[name]:.2f} {unit}" for name, (unit, _, _) in FIGURES.items()]
        print(f"a placement over {shards} shards, {source}: {', '.join(told)}")
    if option == "--sites":
        for name, number in sorted(runs[-1][2].items(), key=lambda site: -site[1]):
            print(f"{number:8.3f}  {runs[0][2].get(name, 0):8.3f}  {name}")
    if option in ("--update", "--page"):
        write_baseline(source, counted)
    if option == "--page":
        write_page(source, counted)
    faults = faults_of(source, counted)
    print("\n".join(faults), end="\n" if faults else "", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Wrong as wrong:
        print(wrong, file=sys.stderr)
        sys.exit(2)
