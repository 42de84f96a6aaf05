#!/bin/sh
# Runs all tests, and prints the ten slowest at the end.
#
# Most tests wait most of their time, so suites (tests/NAME/main.rs) run three at a time, the longest first, and with them
# the tests of the other crates. The campaign takes a processor, so what mostly waits runs beside it. Those of ALONE need the processors for themselves, and follow. What a suite says is kept,
# and shown when it fails, hangs or is ended; one that takes SUITE_MINUTES hangs, and its output names the test. Ends with
# a non-zero status if anything failed.
#
# Its builds have no debug information and are not incremental, as in CI: from nothing, both take longer than they save.
#
#   scripts/tests.sh
set -eu
cd "$(dirname "$0")/.."

CARGO=${CARGO:-cargo}
SUITE_MINUTES=${SUITE_MINUTES:-20}
ALONE="locks scale keeper_death steward_death"
LONGEST="campaign docs observability kinds fair faults interop cluster"
RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((3 * $(getconf _NPROCESSORS_ONLN)))}
CARGO_PROFILE_DEV_DEBUG=${CARGO_PROFILE_DEV_DEBUG:-0}
CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0}
export CARGO SUITE_MINUTES RUST_TEST_THREADS CARGO_PROFILE_DEV_DEBUG CARGO_INCREMENTAL
host=$(rustc -vV | sed -n 's/^host: //p')
# Only a nightly takes the option that reports times. RUSTC_BOOTSTRAP makes the programs of tests take it; set for cargo
# itself, it would have everything built again.
export "CARGO_TARGET_$(echo "$host" | tr a-z- A-Z_)_RUNNER=env RUSTC_BOOTSTRAP=1"

logs=$(mktemp -d)
export logs
cleanup() {
    status=$?
    trap - EXIT
    for pid in "$logs"/*.pid; do
        [ ! -e "$pid" ] || kill "$(cat "$pid")" 2>/dev/null || true
    done
    [ "$status" -eq 0 ] || cat "$logs/parts" 2>/dev/null || true
    # What is still here did not end well.
    for log in "$logs"/*.log; do
        [ ! -e "$log" ] || { echo "---- $(basename "$log" .log)"; cat "$log"; }
    done
    rm -rf "$logs"
    exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# suite NAME COMMAND...: runs tests; what they said stays in NAME.log unless all is well.
export suite='
    name=$1
    shift
    timeout "${SUITE_MINUTES}m" "$@" -Z unstable-options --report-time \
        >"$logs/$name.log" 2>&1 </dev/null &
    # Suites are process groups of their own, which no Ctrl-C reaches.
    echo $! >"$logs/$name.pid"
    wait $! || {
        echo "FAILED: $name, status $?"
        exit 1
    }
    rm "$logs/$name.pid"
    mv "$logs/$name.log" "$logs/$name.passed"
'
run() {
    sh -c "$suite" suite "$@"
}
# part NAME: what ran since the last part took so long.
part() {
    now=$(date +%s)
    echo "    $((now - begun)) s $1" >>"$logs/parts"
    begun=$now
}
begun=$(date +%s)

# With all features, so that what these tests stand on is built once.
features="--features watchlock/tls,watchlock/metrics,watchlock/blocking"
others="--workspace --exclude watchlock --exclude watchlock-simulation --tests $features"
# shellcheck disable=SC2086 # arguments are words
$CARGO build --quiet --workspace --exclude watchlock-simulation --bins --examples --test '*' $features
# shellcheck disable=SC2086
$CARGO test --quiet $others --no-run
part "to build programs and suites"
# programs COMMAND ARGUMENT...: the programs of tests that this command of cargo builds.
programs() {
    command=$1
    shift
    $CARGO "$command" --quiet --message-format json-render-diagnostics "$@" >"$logs/built"
    sed -n '/"profile":{[^}]*"test":true}/s/.*"executable":"\([^"]*\)".*/\1/p' "$logs/built"
}
# The model runs all orders of what may happen, and the simulation 100 000 schedules. The other tests mostly wait: to
# optimize them takes longer than to run them. These are flags and no profile, because cargo would build what the tests
# depend on once more for a profile.
# shellcheck disable=SC2086
unit=$(programs rustc --package watchlock $features --lib --profile test -- -C opt-level=2 -C codegen-units=4)
part "to build the model"
# Tokio's own randomness must follow the seed. With --target the flag is not passed to compilers of macros, so those of the
# other builds serve.
simulation=$(
    export RUSTFLAGS="--cfg tokio_unstable"
    programs test --no-run --target "$host" --config tests/simulation/profile.toml --package watchlock-simulation --tests
)
part "to build the simulation"
run unit env RUSTC_BOOTSTRAP=1 "${unit:?it was not built}"
echo "${simulation:?it was not built}" | while read -r program; do
    run "$(basename "${program%-*}")" env RUSTC_BOOTSTRAP=1 "$program"
done
# They do not run beside the suites. Those have leases of less than a second, and a machine whose processors are all busy
# stands still for a part of one.
part "the model and the simulation"

suite_of() {
    echo "$1 --package watchlock $features --test $1"
}
# A line for each: its name, and what cargo is to test.
suites() {
    for name in $LONGEST; do
        suite_of "$name"
    done
    echo "others $others"
    for main in tests/*/main.rs; do
        name=$(basename "$(dirname "$main")")
        case " $ALONE $LONGEST " in
        *" $name "*) ;;
        *) suite_of "$name" ;;
        esac
    done
}
# shellcheck disable=SC2016 # for the inner shell
suites | xargs -P 3 -L 1 sh -c 'name=$1; shift; sh -c "$suite" suite "$name" $CARGO test "$@" --' suite
part "suites, three at a time"
for name in $ALONE; do
    # shellcheck disable=SC2086
    run "$name" $CARGO test --package watchlock $features --test "$name" --
done
part "suites, one at a time"
# shellcheck disable=SC2086
$CARGO test --quiet --doc --workspace --exclude watchlock-simulation $features
part "examples in the documentation"

echo "the parts:"
cat "$logs/parts"
echo "the slowest tests:"
for log in "$logs"/*.passed; do
    # test NAME ... ok <SECONDSs>
    sed -n "s/^test \(.*\) \.\.\. .*<\([0-9.]*\)s>.*/\2 s $(basename "$log" .passed)::\1/p" "$log"
done | sort -rn | head -n 10 | sed 's/^/    /'
