#!/bin/sh
# Runs the tests of scripts and of all kinds of locks (SUITES) on the Redis in memory of `watchlock-test`, unchanged. `skips`
# is all that is left out there, with the reasons. Ends with a non-zero status if anything failed.
set -eu
cd "$(dirname "$0")/.."

CARGO=${CARGO:-cargo}
suites=${SUITES:-scripts kinds}

# part of a test's name | why it is not run in memory
skips="
cancellation:: | of the client alone, and minutes
costs:: | of the client alone
"

$CARGO build --quiet --package watchlock-test --example memory-redis
target=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)
REDIS_SERVER=$target/debug/examples/memory-redis
export REDIS_SERVER

options=
for suite in $suites; do
    options="$options --test $suite"
done
skipped=$(echo "$skips" | sed -n 's/^\([^ ]*\) |.*/--skip \1/p')
# shellcheck disable=SC2086 # options are words
$CARGO test --quiet --no-fail-fast $options -- $skipped
