#!/usr/bin/env bash
# Counts the instructions of one place and one release by callgrind: those of the `steady` row of `wharf-bench
# engine`, by its own driver. Other work on the machine does not change this figure. Compares with baseline.txt and
# fails if the engine takes over 3 % more or less; `--update` writes a new baseline. Less also fails, so that an
# improvement is recorded in the baseline. `--misses` also prints misses of simulated caches (32 KB and 1 MB).
set -euo pipefail
cd "$(dirname "$0")/../.."
baseline=bench-harness/callgrind/baseline.txt
tolerance_percent=3
nodes=10000 ops=4096

caches=()
case "${1-}" in
  '' | --update) ;;
  --misses) caches=(--cache-sim=yes --I1=32768,8,64 --D1=32768,8,64 --LL=1048576,8,64) ;;
  *) echo "usage: $0 [--update | --misses]" >&2; exit 2 ;;
esac
command -v valgrind >/dev/null || { echo "valgrind is missing: install it (apt-get install valgrind)" >&2; exit 3; }

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cargo build --release -p wharf-bench --example steady --locked --message-format=json-render-diagnostics >"$scratch/build.json"
program=$(sed -n 's/.*"name":"steady".*"executable":"\([^"]*\)".*/\1/p' "$scratch/build.json" | tail -1)
[ -x "$program" ] || { echo "cargo named no executable of the example \`steady\`" >&2; exit 1; }

# Counts one policy. Prints the source of the shapes and the figures per op, in the order of callgrind's events.
count() {
  valgrind --tool=callgrind "${caches[@]}" --callgrind-out-file="$scratch/callgrind.$1" \
    --toggle-collect='*measured_step*' "$program" "$1" "$nodes" "$ops" >"$scratch/$1" 2>&1 ||
    { cat "$scratch/$1" >&2; exit 1; }
  awk '$1 == "openb" || $1 == "synthetic" { source = $1; ops = $2 }
    /Collected *:/ { sub(/.*Collected *: /, ""); each = ""; for (i = 1; i <= NF; i++) each = each " " int($i / ops) }
    END { if (!ops || !each) exit 1; print source each }' "$scratch/$1" || { cat "$scratch/$1" >&2; exit 1; }
}

# Both at once: they are independent.
count least-fit >"$scratch/figures.least-fit" & first=$!
count best-fit >"$scratch/figures.best-fit"
wait "$first"

failed=0
for policy in least-fit best-fit; do
  read -r source now misses <"$scratch/figures.$policy"
  before=$(awk -v key="$policy $source" '$1 " " $2 == key { print $3 }' "$baseline")
  echo "$policy, $source: $now instructions per place and release at $nodes nodes, baseline ${before:-none}"
  if [ "${1-}" = --misses ]; then
    # Ir Dr Dw, then the misses of the first and the last level for instructions, reads and writes.
    echo "$misses" | awk '{ print "  misses: " $3 " of instructions, " $4 + $5 " of data, " $6 + $7 + $8 " of the last cache" }'
  elif [ "${1-}" = --update ]; then
    awk -v key="$policy $source" '$1 " " $2 != key' "$baseline" >"$scratch/new"
    echo "$policy $source $now" >>"$scratch/new"
    sort "$scratch/new" >"$baseline"
  elif [ -z "$before" ]; then
    echo "$policy: not compared: there is no baseline for $source shapes (the openb trace is absent)"
  elif ! awk -v now="$now" -v before="${before:-0}" -v most="$tolerance_percent" \
    'BEGIN { d = 100 * (now - before) / (before ? before : 1); exit !(before && d <= most && d >= -most) }'; then
    echo "$policy: not within $tolerance_percent % of the baseline: mend it, or see why and run $0 --update" >&2
    failed=1
  fi
done
exit "$failed"
