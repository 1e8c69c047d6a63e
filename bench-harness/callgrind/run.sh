#!/usr/bin/env bash
# Counts instructions by callgrind. Other work on the machine does not change these figures.
#
#   least-fit, best-fit   one place and one release in a shard: the `steady` row of `wharf-bench engine`, by its own driver
#   refusals              the same of the row `full-99.5`, where more than half of the requests are refused
#   requests              one request in the connections and the port of an I/O thread: the load of `wharf-bench rpc` with
#                         256 in flight, without QUIC and without the shards
#   lone                  the same with one request in flight: placements on an empty cluster over 2 shards
#   lone-64               the same over 64 shards, compared with `lone`: a placement must not cost more with more shards
#
# Compares with baseline.txt and fails if one takes over 3 % more or less; `--update` writes a new baseline. Less also
# fails, so that an improvement is recorded in the baseline. `--misses` also prints misses of simulated caches (32 KB and
# 1 MB).
#
# Then placement.py counts the instructions, atomics, cache lines, allocations and messages of a placement. `--page` only does
# that, and writes its baseline and the table in docs/decisions/shards.md.
set -euo pipefail
cd "$(dirname "$0")/../.."
baseline=bench-harness/callgrind/baseline.txt
tolerance_percent=3
# More than this over 64 shards is growth with the number of shards.
growth_percent=10
nodes=10000 ops=4096 requests=16384 in_flight=256

caches=()
case "${1-}" in
  '' | --update | --page) ;;
  --misses) caches=(--cache-sim=yes --I1=32768,8,64 --D1=32768,8,64 --LL=1048576,8,64) ;;
  *) echo "usage: $0 [--update | --misses | --page]" >&2; exit 2 ;;
esac
for tool in objdump python3; do
  command -v "$tool" >/dev/null || { echo "$tool is missing: install it (apt-get install binutils python3)" >&2; exit 3; }
done
command -v valgrind >/dev/null || { echo "valgrind is missing: install it (apt-get install valgrind)" >&2; exit 3; }

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# Without `-p`, so that dependencies have the features that other builds of the workspace give them, and are not built again.
cargo build --release --example steady --example requests --locked \
  --message-format=json-render-diagnostics >"$scratch/build.json"
program() {
  local path
  path=$(sed -n 's/.*"name":"'"$1"'".*"executable":"\([^"]*\)".*/\1/p' "$scratch/build.json" | tail -1)
  [ -x "$path" ] || { echo "cargo named no executable of the example \`$1\`" >&2; exit 1; }
  echo "$path"
}
steady=$(program steady)
requests_program=$(program requests)
placement=(bench-harness/callgrind/placement.py "$requests_program")
if [ "${1-}" = --page ]; then
  "${placement[@]}" --page
  exit
fi

# Counts a function of a program. Prints the source of the shapes and the figures per op, in the order of callgrind's
# events. Usage: count NAME FUNCTION PROGRAM ARGUMENT...
count() {
  local name=$1 function=$2
  shift 2
  valgrind --tool=callgrind "${caches[@]}" --callgrind-out-file="$scratch/callgrind.$name" \
    --toggle-collect="*$function*" "$@" >"$scratch/$name" 2>&1 || { cat "$scratch/$name" >&2; exit 1; }
  awk '$1 == "openb" || $1 == "synthetic" { source = $1; ops = $2 }
    /Collected *:/ { sub(/.*Collected *: /, ""); each = ""; for (i = 1; i <= NF; i++) each = each " " int($i / ops) }
    END { if (!ops || !each) exit 1; print source each }' "$scratch/$name" || { cat "$scratch/$name" >&2; exit 1; }
}

# Two at once: they are independent.
{
  count least-fit measured_step "$steady" steady least-fit "$nodes" "$ops" >"$scratch/figures.least-fit"
  count requests counted_connections "$requests_program" least-fit "$nodes" 2 "$requests" "$in_flight" full \
    >"$scratch/figures.requests"
  count lone counted_connections "$requests_program" least-fit "$nodes" 2 "$ops" 1 empty >"$scratch/figures.lone"
} & first=$!
count refusals measured_step "$steady" full-99.5 least-fit "$nodes" "$ops" >"$scratch/figures.refusals"
count best-fit measured_step "$steady" steady best-fit "$nodes" "$ops" >"$scratch/figures.best-fit"
count lone-64 counted_connections "$requests_program" least-fit "$nodes" 64 "$ops" 1 empty >"$scratch/figures.lone-64"
wait "$first"

# Fails if the first figure is not within the tolerance of the second.
is_near() {
  awk -v now="$1" -v before="${2:-0}" -v most="$tolerance_percent" \
    'BEGIN { d = 100 * (now - before) / (before ? before : 1); exit !(before && d <= most && d >= -most) }'
}

failed=0
for name in least-fit best-fit refusals requests lone lone-64; do
  read -r source now misses <"$scratch/figures.$name"
  before=$(awk -v key="$name $source" '$1 " " $2 == key { print $3 }' "$baseline")
  case "$name" in
    *-fit | refusals) unit="place and release" ;;
    *) unit=request ;;
  esac
  echo "$name, $source: $now instructions per $unit at $nodes nodes, baseline ${before:-none}"
  if [ "${1-}" = --misses ]; then
    # Ir Dr Dw, then the misses of the first and the last level for instructions, reads and writes.
    echo "$misses" | awk '{ print "  misses: " $3 " of instructions, " $4 + $5 " of data, " $6 + $7 + $8 " of the last cache" }'
  elif [ "${1-}" = --update ]; then
    awk -v key="$name $source" '$1 " " $2 != key' "$baseline" >"$scratch/new"
    echo "$name $source $now" >>"$scratch/new"
    sort "$scratch/new" >"$baseline"
  elif [ -z "$before" ] && [ "$source" = openb ]; then
    echo "$name: there is no baseline: run $0 --update" >&2
    failed=1
  elif [ -z "$before" ]; then
    echo "$name: not compared: there is no baseline for $source shapes (the openb trace is absent)"
  elif ! is_near "$now" "$before"; then
    echo "$name: not within $tolerance_percent % of the baseline: mend it, or see why and run $0 --update" >&2
    failed=1
  fi
done
read -r _ lone _ <"$scratch/figures.lone"
read -r _ lone_64 _ <"$scratch/figures.lone-64"
if [ "$((lone_64 * 100))" -gt "$((lone * (100 + growth_percent)))" ]; then
  echo "a lone request takes $lone_64 instructions over 64 shards and $lone over 2: it must not depend on the shards" >&2
  failed=1
fi
case "${1-}" in
  --update) "${placement[@]}" --update || failed=1 ;;
  *) "${placement[@]}" || failed=1 ;;
esac
exit "$failed"
