#!/bin/sh
# Runs the example `quorum` on five servers on loopback, kills two of them while its job runs, and stops the others at
# the end. Ends with the example's status.
set -eu
cd "$(dirname "$0")/.."

home=$(mktemp -d)
servers=
job=

cleanup() {
    status=$?
    trap - EXIT
    for process in $servers $job; do
        kill "$process" 2>/dev/null || true
    done
    rm -rf "$home"
    exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

binary=$(scripts/redis-server.sh)
port=$((20000 + $$ % 10000))
urls=
for number in 1 2 3 4 5; do
    port=$((port + 1))
    mkdir "$home/$number"
    "$binary" --port "$port" --bind 127.0.0.1 --save "" --appendonly no --dir "$home/$number" \
        --logfile "$home/$number/log" >/dev/null 2>&1 </dev/null &
    servers="$servers $!"
    urls="$urls,redis://127.0.0.1:$port/"
done

${CARGO:-cargo} build --quiet --example quorum
REDIS_URLS=${urls#,} NO_DELAY=1 ${CARGO:-cargo} run --quiet --example quorum &
job=$!
sleep 2
# Word by word: the first two.
# shellcheck disable=SC2086
set -- $servers
echo "two of the five servers are killed"
kill -9 "$1" "$2"
wait "$job"
