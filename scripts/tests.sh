#!/bin/sh
# Runs all tests, and prints the ten slowest at the end.
#
# Most tests wait most of their time, so suites (tests/NAME/main.rs) run three at a time, the longest first, and with them
# the tests of the other crates. The campaign takes a processor, so what mostly waits runs beside it. Those of ALONE need
# the processors for themselves, and follow. What a suite says is kept, and shown when it fails, hangs or is ended; one that
# takes SUITE_MINUTES hangs, and its output names the test. Ends with a non-zero status if anything failed.
#
# Its builds have no debug information and are not incremental, as in CI: from nothing, both take longer than they save.
#
#   scripts/tests.sh
set -eu
cd "$(dirname "$0")/.."

CARGO=${CARGO:-cargo}
SUITE_MINUTES=${SUITE_MINUTES:-15}
ALONE="locks scale keeper_death steward_death"
LONGEST="campaign docs observability kinds fair faults interop cluster"
RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((3 * $(getconf _NPROCESSORS_ONLN)))}
CARGO_PROFILE_DEV_DEBUG=${CARGO_PROFILE_DEV_DEBUG:-0}
CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0}
export CARGO SUITE_MINUTES RUST_TEST_THREADS CARGO_PROFILE_DEV_DEBUG CARGO_INCREMENTAL
host=$(rustc -vV | sed -n 's/^host: //p')

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

# suite NAME FOLDER PROGRAM: runs tests; what they said stays in NAME.log unless all is well. Only a nightly takes the option
# that reports times, or a program of tests with RUSTC_BOOTSTRAP.
export suite='
    name=$1
    cd "$2"
    RUSTC_BOOTSTRAP=1 timeout "${SUITE_MINUTES}m" "$3" -Z unstable-options --report-time \
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
# part NAME: what ran since the last part took so long.
part() {
    now=$(date +%s)
    echo "    $((now - begun)) s $1" >>"$logs/parts"
    begun=$now
}
begun=$(date +%s)

# programs BUILD COMMAND ARGUMENT...: the programs of tests that this command of cargo builds, a line for each: its name, the
# folder of its crate, and where it is. `lower` may lower its priority.
lower=
programs() {
    build=$1
    command=$2
    shift 2
    # shellcheck disable=SC2086 # no word, or more
    timeout "${SUITE_MINUTES}m" $lower $CARGO "$command" --quiet --message-format json-render-diagnostics "$@" >"$logs/$build" &
    echo $! >"$logs/$build.pid"
    wait $!
    rm "$logs/$build.pid"
    sed -n '/"profile":{[^}]*"test":true}/s|.*"manifest_path":"\([^"]*\)/Cargo.toml".*"name":"\([^"]*\)".*"executable":"\([^"]*\)".*|\2\t\1\t\3|p' "$logs/$build"
}
# With all features, so that what these tests stand on is built once.
features="--features watchlock/tls,watchlock/metrics,watchlock/blocking"
# shellcheck disable=SC2086 # arguments are words
programs all build --workspace --exclude watchlock-simulation --bins --examples --test '*' $features >"$logs/programs"
awk -F '\t' -v root="$(pwd -P)" '$2 == root' "$logs/programs" >"$logs/suites"
# shellcheck disable=SC2086
programs rest test --no-run --workspace --exclude watchlock --exclude watchlock-simulation --tests $features >"$logs/others"
part "to build programs and suites"

# The model runs all orders of what may happen, and the simulation 100 000 schedules, so they are optimized. Built beside
# the suites, which mostly wait, and with a lower priority.
optimized() {
    lower="nice -n 19"
    # These are flags and no profile, because cargo would build what the tests depend on once more for a profile.
    # shellcheck disable=SC2086
    programs model rustc --package watchlock $features --lib --profile test -- -C opt-level=2 -C codegen-units=4
    # Tokio's own randomness must follow the seed. With --target the flag is not passed to compilers of macros, so those of
    # the other builds serve.
    export RUSTFLAGS="--cfg tokio_unstable"
    programs simulation test --no-run --target "$host" --config tests/simulation/profile.toml --package watchlock-simulation --tests
}
optimized >"$logs/optimized" &
optimizing=$!

# A line for each suite, the longest first.
suites() {
    for name in $LONGEST; do
        grep "^$name	" "$logs/suites"
    done
    # Names may occur in several crates.
    awk -F '\t' -v OFS='\t' '{ crate = $2; sub(".*/", "", crate); $1 = crate "-" $1; print }' "$logs/others"
    while IFS='	' read -r name rest; do
        case " $ALONE $LONGEST " in
        *" $name "*) ;;
        *) printf '%s\t%s\n' "$name" "$rest" ;;
        esac
    done <"$logs/suites"
}
suites >"$logs/order"
# shellcheck disable=SC2016 # for the inner shell
tr '\t\n' '\0\0' <"$logs/order" | xargs -0 -P 3 -n 3 sh -c "$suite" suite
wait "$optimizing"
part "suites, three at a time, and to build the model and the simulation beside them"
# Those of ALONE need a processor whenever they want one. What is optimized takes what they leave.
while IFS='	' read -r name folder program; do
    nice -n 19 sh -c "$suite" suite "$name" "$folder" "$program"
done <"$logs/optimized" &
optimizing=$!
for name in $ALONE; do
    program=$(grep "^$name	" "$logs/suites" | cut -f 3)
    sh -c "$suite" suite "$name" "$PWD" "$program"
done
wait "$optimizing"
part "suites, one at a time, and the model and the simulation beside them"
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
