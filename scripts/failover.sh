#!/bin/sh
# Prints what a lock survives when the master is killed, case by case, on each of NAMEs (default: a Redis and a Valkey).
# Ends with a non-zero status if a case has another outcome than it must.
set -eu
cd "$(dirname "$0")/.."

[ $# -gt 0 ] || set -- redis-7.0 valkey-8.1
log=$(mktemp)
trap 'rm -f "$log"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
failed=
for name in "$@"; do
    REDIS_SERVER=$(scripts/servers.sh "$name")
    export REDIS_SERVER
    "${CARGO:-cargo}" test --quiet --test failover -- --nocapture >"$log" 2>&1 || failed=yes
    echo "$("$REDIS_SERVER" --version | sed 's/^\([A-Za-z]*\) server v=\([^ ]*\).*/\1 \2/'):"
    echo "| case | the first client | the second, after the fail-over | holders |"
    echo "|---|---|---|---|"
    grep -o '| [A-F] .*|$' "$log" | sort
    echo
    [ -z "$failed" ] || cat "$log" >&2
done
[ -z "$failed" ]
