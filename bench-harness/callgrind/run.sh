#!/usr/bin/env bash
# Counts the instructions of one place and one release at steady state by callgrind. Other work on the machine does
# not change this figure. Compares with baseline.txt and fails if the engine takes over 5 % more or less; `--update`
# writes a new baseline. Less also fails, so that an improvement is recorded in the baseline.
set -euo pipefail
cd "$(dirname "$0")/../.."
baseline=bench-harness/callgrind/baseline.txt
tolerance_percent=5
# Number of nodes; number of rounds with one place and one release each; requests with a selector, in tenths.
nodes=10000 rounds=2000 marked=1

case "${1-}" in
  '' | --update) ;;
  *) echo "usage: $0 [--update]" >&2; exit 2 ;;
esac
command -v valgrind >/dev/null || { echo "valgrind is missing: install it (apt-get install valgrind)" >&2; exit 3; }

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cargo bench -p wharf-core --bench step --locked --no-run --message-format=json-render-diagnostics >"$scratch/build.json"
program=$(sed -n 's/.*"name":"step".*"executable":"\([^"]*\)".*/\1/p' "$scratch/build.json" | tail -1)
[ -x "$program" ] || { echo "cargo named no executable of the bench \`step\`" >&2; exit 1; }

# Prints instructions per round of one policy.
count() {
  valgrind --tool=callgrind --callgrind-out-file="$scratch/callgrind.out" --toggle-collect='*steady_state*' \
    "$program" "$nodes" "$1" "$rounds" "$marked" >"$scratch/output" 2>&1 || { cat "$scratch/output" >&2; exit 1; }
  awk -v rounds="$rounds" '/Collected *:/ { print int($NF / rounds); found = 1 } END { exit !found }' "$scratch/output" ||
    { cat "$scratch/output" >&2; exit 1; }
}

failed=0
: >"$scratch/new"
for policy in least-fit best-fit; do
  now=$(count "$policy")
  echo "$policy $now" >>"$scratch/new"
  before=$(awk -v policy="$policy" '$1 == policy { print $2 }' "$baseline" 2>/dev/null || true)
  echo "$policy: $now instructions per place and release at $nodes nodes, baseline ${before:-none}"
  if [ "${1-}" != --update ] && ! awk -v now="$now" -v before="${before:-0}" -v most="$tolerance_percent" \
    'BEGIN { d = 100 * (now - before) / (before ? before : 1); exit !(before && d <= most && d >= -most) }'; then
    echo "$policy: not within $tolerance_percent % of the baseline: mend it, or see why and run $0 --update" >&2
    failed=1
  fi
done
if [ "${1-}" = --update ]; then cp "$scratch/new" "$baseline"; fi
exit "$failed"
