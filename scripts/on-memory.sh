#!/bin/sh
# Runs the tests of scripts and of all kinds of locks (SUITES) on the Redis in memory of `watchlock-test`, unchanged. `skips`
# is all that is left out there, with the reasons. Ends with a non-zero status if anything failed.
set -eu
cd "$(dirname "$0")/.."

CARGO=${CARGO:-cargo}
suites=${SUITES:-scripts kinds}

# part of a test's name | why it is not run in memory
skips="
busy_with_a_script_is_waited_for | no other client can run a command while a script runs, and get BUSY
f6_a_restart_that_remembers_costs_no_hold | nothing is kept on a disk
f8_an_evicted_hold_is_lost | it does not measure memory, so it evicts nothing
loading_is_waited_for_and_holds_live_through_it | nothing is loaded from a disk
masterdown_is_waited_for | it is no replica of another server
f12_a_key_that_is_no_lock_is_reported_by_every_verb_and_left_alone | a key of this test is a stream, and it has none
f12_a_key_that_is_no_lock_has_no_holders | the same
verify_finds_strangers_and_other_types | the same
a_hold_whose_key_has_another_type_is_lost_for_every_call | the same
misconf_is_refused_and_passes | it has no disk that could fail
"

$CARGO build --quiet --workspace --exclude watchlock-simulation --example memory-redis --features watchlock/tls,watchlock/metrics,watchlock/blocking
target=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)
REDIS_SERVER=$target/debug/examples/memory-redis
export REDIS_SERVER

# The programs of `make test`.
options="--package watchlock --features watchlock/tls,watchlock/metrics,watchlock/blocking"
for suite in $suites; do
    options="$options --test $suite"
done
skipped=$(echo "$skips" | sed -n 's/^\([^ ]*\) |.*/--skip \1/p')
# shellcheck disable=SC2086 # options are words
$CARGO test --quiet --no-fail-fast $options -- $skipped
