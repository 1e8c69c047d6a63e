#!/usr/bin/env bash
# A fuzzing campaign: runs the fuzz targets for some time, several at once, and prints a table of what they did.
#
#   fuzz/campaign.sh [--seconds N] [--jobs J] [--into PAGE] [TARGET...]
#
# Each target runs for N seconds (60), J of them at once (as many as there are cores). Without targets, all run. The
# inputs that they found before are kept in fuzz/corpus, and those in fuzz/seeds are added. At the end, each corpus is
# reduced to what is needed for its coverage. With `--into`, the rows of these targets in the table of a page are replaced:
# its path is relative to the root of the repository.
# The exit status is 1 with findings, and 2 if something else went wrong.
set -euo pipefail
cd "$(dirname "$0")/.."

all=(codec session_bytes connection journal config trace index_ops shard_ops statement_ops simulation)
seconds=60
jobs=$(nproc)
page=
targets=()
wrong() { echo "fuzz/campaign.sh: $1" >&2; exit 2; }
while [ $# -gt 0 ]; do
  case "$1" in
    --seconds | --jobs)
      [[ "${2:-}" =~ ^[1-9][0-9]*$ ]] || wrong "$1 needs a number, at least 1"
      [ "$1" = --seconds ] && seconds=$2 || jobs=$2
      shift 2
      ;;
    --into)
      [ -w "${2:-}" ] || wrong "--into needs the path of a page that can be written"
      page=$2
      shift 2
      ;;
    -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    -*) wrong "unknown option $1" ;;
    *)
      [[ " ${all[*]} " == *" $1 "* ]] || wrong "unknown target $1: known are ${all[*]}"
      targets+=("$1")
      shift
      ;;
  esac
done
[ ${#targets[@]} -gt 0 ] || targets=("${all[@]}")

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
export logs seconds RUSTC_BOOTSTRAP=1
fuzz() { local command=$1; shift; cargo fuzz "$command" --fuzz-dir fuzz --features libfuzzer "$@"; }
export -f fuzz

echo "building" >&2
fuzz build >"$logs/build.log" 2>&1 || { tail -40 "$logs/build.log" >&2; wrong "the targets cannot be built"; }

run() {
  local most=4096
  # The time of an input of these grows with its length, up to seconds. Shorter ones leave time to try many.
  case "$1" in index_ops | shard_ops | statement_ops | simulation) most=1024 ;; esac
  local target=$1 corpus=fuzz/corpus/$1 artifacts=fuzz/artifacts/$1 rc=0
  mkdir -p "$corpus" "$artifacts"
  touch "$logs/$target.begin"
  echo "$target runs for $seconds s" >&2
  # All stored inputs as they are: those that are longer are cut below.
  fuzz run "$target" "fuzz/seeds/$target" -- -runs=0 -timeout=60 -rss_limit_mb=4096 \
    -artifact_prefix="$artifacts/" >"$logs/$target.log" 2>&1 || rc=$?
  # libFuzzer writes to the first folder only, so the seeds stay as they are.
  [ "$rc" -ne 0 ] || fuzz run "$target" "$corpus" "fuzz/seeds/$target" -- -max_total_time="$seconds" -timeout=60 \
    -rss_limit_mb=4096 -report_slow_units=60 -max_len="$most" -print_final_stats=1 -artifact_prefix="$artifacts/" \
    >>"$logs/$target.log" 2>&1 || rc=$?
  echo "$rc" >"$logs/$target.rc"
}
export -f run
printf '%s\n' "${targets[@]}" | xargs -P "$jobs" -I{} bash -c 'run {}'

# Findings make the reduction stop, so they are left out of it.
for target in "${targets[@]}"; do
  if [ "$(cat "$logs/$target.rc")" -eq 0 ]; then
    echo "$target: its corpus is reduced" >&2
    fuzz cmin "$target" "fuzz/corpus/$target" >"$logs/$target.cmin.log" 2>&1 ||
      { tail -20 "$logs/$target.cmin.log" >&2; wrong "the corpus of $target cannot be reduced"; }
  fi
done

status=0
printf '\n%-14s %12s %8s %7s %7s %7s %9s\n' target executions exec/s cov ft corpus findings
for target in "${targets[@]}"; do
  log=$logs/$target.log
  number() { sed -n "s/^stat::$1: *//p" "$log" | tail -1; }
  covered() { grep -oE "$1: [0-9]+" "$log" | tail -1 | cut -d' ' -f2 || true; }
  mapfile -t found < <(find "fuzz/artifacts/$target" -type f -newer "$logs/$target.begin" | sort)
  executed=$(number number_of_executed_units)
  # libFuzzer leaves out what is less than one per second.
  rate=$(awk -v n="${executed:-0}" -v s="$seconds" 'BEGIN { printf "%.1f", n / s }')
  figures=("$executed" "$rate" "$(covered cov)" "$(covered ft)"
    "$(find "fuzz/corpus/$target" -type f | wc -l)" "${#found[@]}")
  printf '%-14s %12s %8s %7s %7s %7s %9s\n' "$target" "${figures[@]}"
  if [ -n "$page" ]; then
    row="| \`$target\` | $seconds |$(printf ' %s |' "${figures[@]}") $(git rev-parse --short=10 HEAD), $(date +%F) |"
    # Other tables have rows of the targets too, without a number after the name.
    awk -v begin="| \`$target\` | " -v row="$row" '
      index($0, begin) == 1 && substr($0, length(begin) + 1) ~ /^[0-9]/ { $0 = row; done = 1 } { print }
      END { exit !done }' "$page" >"$logs/page" || wrong "$page has no row of $target to replace"
    cat "$logs/page" >"$page"
  fi
  if [ ${#found[@]} -gt 0 ]; then
    printf '%s\n' "${found[@]}" | sed "s/^/$target /" >>"$logs/findings"
    status=1
  elif [ "$(cat "$logs/$target.rc")" -ne 0 ]; then
    tail -40 "$log" >&2
    [ "$status" -eq 1 ] || status=2
  fi
done

if [ -s "$logs/findings" ]; then
  echo
  while read -r target input; do
    grep -m1 -E "panicked at|ERROR:" -A1 "$logs/$target.log" || true
    echo "  replay it:      RUSTC_BOOTSTRAP=1 cargo fuzz run --fuzz-dir fuzz --features libfuzzer $target $input"
    echo "  make it small:  RUSTC_BOOTSTRAP=1 cargo fuzz tmin --fuzz-dir fuzz --features libfuzzer $target $input"
    echo "  once mended:    store it in fuzz/seeds/$target/ under a name that says what it found"
  done <"$logs/findings"
fi
exit "$status"
