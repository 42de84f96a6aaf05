#!/bin/sh
# Runs all tests, and prints how long the parts took and the ten slowest tests at the end.
#
# Most tests wait most of their time, so suites (tests/NAME/main.rs) run SUITES_AT_ONCE at a time, the longest first. What
# computes all the time (the model, the simulation, the examples in the documentation) runs beside them at the lowest
# priority, on the processors that they leave idle. The suites of ALONE need the processors for themselves, and follow.
# The output of a suite is kept, and shown when it fails, hangs or is ended; one that takes SUITE_MINUTES hangs, and its
# output names the test. Ends with a non-zero status if anything failed.
#
#   scripts/tests.sh
set -eu
cd "$(dirname "$0")/.."

CARGO=${CARGO:-cargo}
SUITE_MINUTES=${SUITE_MINUTES:-20}
ALONE="locks scale keeper_death steward_death"
LONGEST="campaign kinds observability interop cluster docs fair"
# These wait for leases and time-outs nine tenths of their time, so they get twice as many threads.
WAITING="acknowledged fair faults read_write sentinel waiting"
SUITES_AT_ONCE=${SUITES_AT_ONCE:-2}
RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(getconf _NPROCESSORS_ONLN)))}
more_threads=$((2 * RUST_TEST_THREADS))
export CARGO SUITE_MINUTES RUST_TEST_THREADS
# Only a nightly takes the option that reports times. RUSTC_BOOTSTRAP makes the programs of tests take it; set for cargo
# itself, it would have everything built again.
export "CARGO_TARGET_$(rustc -vV | sed -n 's/^host: //p' | tr a-z- A-Z_)_RUNNER=env RUSTC_BOOTSTRAP=1"

logs=$(mktemp -d)
export logs
cleanup() {
    status=$?
    trap - EXIT
    for pid in "$logs"/*.pid; do
        [ ! -e "$pid" ] || kill "$(cat "$pid")" 2>/dev/null || true
    done
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

# suite NAME COMMAND...: a command that runs tests. Its output stays in NAME.log unless all is well.
suite='
    name=$1
    shift
    begun=$(date +%s)
    timeout "${SUITE_MINUTES}m" "$@" >"$logs/$name.log" 2>&1 </dev/null &
    # Suites are process groups of their own, which no Ctrl-C reaches.
    echo $! >"$logs/$name.pid"
    wait $! || {
        echo "FAILED: $name, status $?"
        exit 1
    }
    rm "$logs/$name.pid"
    mv "$logs/$name.log" "$logs/$name.passed"
    echo "$(($(date +%s) - begun)) s $name" >>"$logs/took"
'
run() {
    sh -c "$suite" suite "$@"
}
report="-Z unstable-options --report-time"

# shellcheck disable=SC2086 # $others, $report and $names are words
{
    # In two builds: the other crates do not get the features that only the library's dev-dependencies ask for.
    others="--workspace --exclude watchlock --exclude watchlock-simulation"
    run build-others $CARGO build $others --bins --tests
    run build-library $CARGO test --examples --test '*' --no-run
    # Only the model itself is optimized: with `--profile model` all that it depends on would be built once more.
    run build-model $CARGO rustc --quiet --lib --profile test --message-format json -- -C opt-level=2
    model=$(sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' "$logs/build-model.passed")

    (
        run model nice -n 19 env RUSTC_BOOTSTRAP=1 "$model" $report
        # With tokio's own randomness by the seed, which takes a build of its own.
        run simulation nice -n 19 env CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/simulation" \
            RUSTFLAGS="--cfg tokio_unstable" $CARGO test --release --package watchlock-simulation --tests -- $report
        run documentation nice -n 19 $CARGO test --doc
        run documentation-of-others nice -n 19 $CARGO test --doc $others
    ) &
    beside=$!
    echo "$beside" >"$logs/beside.pid"

    names=
    for main in tests/*/main.rs; do
        name=$(basename "$(dirname "$main")")
        case " $ALONE $LONGEST " in
        *" $name "*) ;;
        *) names="$names $name" ;;
        esac
    done
    printf '%s\n' $LONGEST $names others |
        xargs -P "$SUITES_AT_ONCE" -I NAME sh -c "
            case NAME in
            others) set -- NAME $CARGO test $others --tests -- $report ;;
            *) set -- NAME $CARGO test --test NAME -- $report ;;
            esac
            case \" $WAITING \" in
            *' NAME '*) export RUST_TEST_THREADS=$more_threads ;;
            esac
            $suite" suite
    wait "$beside"
    rm "$logs/beside.pid"
    for name in $ALONE; do
        run "$name" $CARGO test --test "$name" -- $report
    done
}

echo "what took longest, some of it side by side:"
sort -rn "$logs/took" | head -n 8 | sed 's/^/    /'
echo "the slowest tests:"
for log in "$logs"/*.passed; do
    # test NAME ... ok <SECONDSs>
    sed -n "s/^test \(.*\) \.\.\. .*<\([0-9.]*\)s>.*/\2 s $(basename "$log" .passed)::\1/p" "$log"
done | sort -rn | head -n 10 | sed 's/^/    /'
