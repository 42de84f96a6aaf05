#!/bin/sh
# Runs what depends on the server on each of NAMEs (default: all that scripts/servers.sh has): the contract of each script,
# what every kind of lock does, each fault, acknowledgements, fail-overs. CHAOS_SECONDS adds a campaign with faults at
# random.
# It prints a table; WRITE=1 writes it into docs/deployments.md. Ends with a non-zero status if anything failed.
set -eu
cd "$(dirname "$0")/.."

CARGO=${CARGO:-cargo}
chaos=${CHAOS_SECONDS:-0}
suites=${SUITES:-scripts kinds faults acknowledged sentinel}
document=docs/deployments.md
[ $# -gt 0 ] || set -- $(scripts/servers.sh)

log=$(mktemp)
table=$(mktemp)
trap 'rm -f "$log" "$table"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
failed=

# The results of all suites in cargo's output, as one number.
passed() {
    awk '/^test result:/ { passed += $4; failed += $6 } END { printf failed ? "%d passed, %d failed" : "%d passed", passed, failed }' "$log"
}

# The summary of a campaign, in a line: in `summary`, since a function whose output is taken cannot set `failed`.
campaign() {
    summary="–"
    [ "$chaos" -gt 0 ] || return 0
    if CHAOS_SECONDS=$chaos "${CARGO_TARGET_DIR:-target}/release/chaos" >"$log" 2>&1; then
        summary=$(awk '/faults/ && !faults { faults = $0 } END { print faults ? faults : "no violation" }' "$log" | tr -s ' ')
    else
        failed=yes
        cat "$log" >&2
        summary=FAILED
    fi
}

# The programs of `make test`.
options="--package watchlock --features watchlock/tls,watchlock/metrics,watchlock/blocking"
for suite in $suites; do
    options="$options --test $suite"
done
# Of tests/kinds neither the costs, which depend on the client only, nor the tests that take minutes. And nothing with TLS,
# which some of these servers are built without.
skips="--skip cancellation:: --skip costs:: --skip ending:: --skip waiting:: --skip leases:: --skip encrypted::"
{
    echo "| server | $(echo "$suites" | sed 's/ /, /g') | ${chaos} s of faults at random |"
    echo "|---|---|---|"
} >"$table"
for name in "$@"; do
    REDIS_SERVER=$(scripts/servers.sh "$name")
    export REDIS_SERVER
    version=$("$REDIS_SERVER" --version | sed 's/^\([A-Za-z]*\) server v=\([^ ]*\).*/\1 \2/')
    # shellcheck disable=SC2086 # options are words
    if ! $CARGO test --quiet --no-fail-fast $options -- $skips >"$log" 2>&1; then
        failed=yes
        echo "$version:" >&2
        cat "$log" >&2
    fi
    tests=$(passed)
    campaign
    echo "| $version | $tests | $summary |" >>"$table"
    tail -n 1 "$table" >&2
done

cat "$table"
if [ -n "${WRITE:-}" ] && [ -z "$failed" ]; then
    awk -v table="$table" '
        /<!-- servers: end -->/ { inside = 0 }
        !inside { print }
        /<!-- servers: / && !/end/ { inside = 1; while ((getline line < table) > 0) print line }
    ' "$document" >"$log"
    cp "$log" "$document"
fi
[ -z "$failed" ]
