#!/usr/bin/env bash
# Counts the lines of Rust in src of core, net and ops, per crate and top module, without tests.
#
# usage: bench-harness/lines.sh [FOLDER]        FOLDER: a checkout; default: the one this script is in
#        bench-harness/lines.sh --files [FOLDER] also every file, largest first
#        bench-harness/lines.sh --features [FOLDER] the files of features that have files of their own, by names
#
# Not counted: items behind `#[cfg(test)]` or `#[cfg(all(test, …))]`, and the files of modules declared so. `code` are the
# lines that are neither blank nor a comment. The end of an item is found by its indentation, so the source has to be
# formatted by rustfmt.
set -euo pipefail

mode=modules
if [[ "${1:-}" == --files || "${1:-}" == --features ]]; then
    mode=${1#--}
    shift
fi
cd "${1:-$(dirname "$0")/..}"

# The files and folders of modules that are declared behind cfg(test), as prefixes without `.rs`.
test_modules() {
    find core/src net/src ops/src -name '*.rs' -print0 | xargs -0 awk '
        FNR == 1 { test = 0 }
        /^ *#\[cfg\((all\()?test/ { test = 1; next }
        test && /^ *#\[/ { next }
        test && /^ *(pub(\([a-z ]*\))? )?mod [a-z_0-9]+;/ {
            folder = FILENAME
            if (!sub(/\/(mod|lib|main)\.rs$/, "", folder)) sub(/\.rs$/, "", folder)
            name = $0
            sub(/^.*mod /, "", name)
            sub(/;.*$/, "", name)
            print folder "/" name
        }
        { test = 0 }'
}

# One row per file: path, lines, lines of code.
per_file() {
    find core/src net/src ops/src -name '*.rs' | sort | awk -v modules="$(test_modules | tr '\n' ' ')" '
        BEGIN {
            count = split(modules, module, " ")
        }
        {
            for (i = 1; i <= count; i++)
                if ($0 == module[i] ".rs" || index($0, module[i] "/") == 1) next
            print
        }' | xargs awk '
        function flush() { if (path != "") print path, lines, code }
        FNR == 1 { flush(); path = FILENAME; lines = 0; code = 0; inside = 0; pending = 0 }
        # Inside a test item: until the line that closes it at its own indentation.
        inside {
            if ($0 ~ end) inside = 0
            next
        }
        pending {
            if ($0 ~ /^ *#\[/) next
            pending = 0
            if ($0 !~ /[;,]$/ && $0 !~ /}$/) inside = 1
            next
        }
        /^ *#\[cfg\((all\()?test/ {
            match($0, /^ */)
            end = "^" substr($0, 1, RLENGTH) "[}\\])]"
            pending = 1
            next
        }
        { lines++ }
        /[^ ]/ && !/^ *\/\// { code++ }
        END { flush() }'
}

# A file counts for the first feature that its path matches.
if [[ "$mode" == features ]]; then
    per_file | awk '
        function feature(path) {
            if (path ~ /^core\/src\/demand|plan_file|cli\/plan|protocol\/plan\.rs|convert\/plans|jobs\/nodes/)
                return "plans of nodes"
            if (path ~ /^core\/src\/(cycle|jobs|fairness)|^ops\/src\/(scenario|cycle_file)|cli\/(scenario|check|explain)/)
                return "queues, jobs, cycles"
            if (path ~ /job|queues?\.rs$|(convert|protocol)\/explain/) return "queues, jobs, cycles"
            if (path ~ /journal|recovery|events?(\.rs|\/|_view)|export|state\/sessions|recovered|feed/)
                return "journal, events, recovery"
            if (path ~ /lease/) return "leases"
            if (path ~ /access|rights|audit\.rs|cert|tls/) return "security"
            return "all else"
        }
        {
            name = feature($1)
            lines[name] += $2
            code[name] += $3
            files[name]++
        }
        END {
            for (name in lines) printf "%-60s %7d %7d %4d files\n", name, lines[name], code[name], files[name] | "sort -k1"
        }'
    exit
fi

per_file | awk -v mode="$mode" '
    {
        split($1, part, "/")
        module = part[1] "/src/" part[3]
        sub(/\.rs$/, "", module)
        rows[module] += $2
        rows_code[module] += $3
        crate[part[1]] += $2
        crate_code[part[1]] += $3
        all += $2
        all_code += $3
        if (mode == "files") printf "%-60s %7d %7d\n", $1, $2, $3 | "sort -k2 -rn"
    }
    END {
        close("sort -k2 -rn")
        for (module in rows) printf "%-60s %7d %7d\n", module, rows[module], rows_code[module] | "sort -k2 -rn"
        close("sort -k2 -rn")
        for (name in crate) printf "%-60s %7d %7d\n", name, crate[name], crate_code[name] | "sort"
        close("sort")
        printf "%-60s %7d %7d\n", "all (lines, lines of code)", all, all_code
    }'
