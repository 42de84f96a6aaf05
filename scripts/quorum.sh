#!/bin/sh
# Runs the example `quorum` on five servers on loopback, ports 7201 to 7205 or five from FIRST_PORT on, kills two of them
# while its job runs, and stops the others at the end. Ends with the example's status.
#
#   scripts/quorum.sh [FIRST_PORT]
set -eu

first=${1:-7201}
. "$(dirname "$0")/until-stopped.sh"
manifest=$(dirname "$0")/../Cargo.toml

urls=
for number in 0 1 2 3 4; do
    start $((first + number)) --save ''
    urls=$urls,redis://127.0.0.1:$((first + number))/
done
servers=$all
# Somebody else's server on one of the ports says nothing.
for number in 0 1 2 3 4; do
    said $((first + number)) 'Ready to accept connections'
done

${CARGO:-cargo} build --quiet --manifest-path "$manifest" --example quorum
REDIS_URLS=${urls#,} NO_DELAY=1 ${CARGO:-cargo} run --quiet --manifest-path "$manifest" --example quorum &
job=$!
all="$all $job"
sleep 2
# Word by word: the first two.
# shellcheck disable=SC2086
set -- $servers
echo "two of the five servers are killed"
kill -9 "$1" "$2"
wait "$job"
