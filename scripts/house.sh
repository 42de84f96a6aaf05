#!/bin/sh
# Prints the figures of the house: lines, types, imports, and how many files of `src` a plain `lock()` passes, alone and
# contended. With --list also what was counted. Fails when ARCHITECTURE.md does not name one of these files.
#
# A file is on the way when one of its functions is called at least once for every second lock: tests/plain-locks runs
# under valgrind with few locks and with more, and the calls of both are compared. What happens once, or now and then,
# drops out. Alone, nothing is given back; contended, one client holds and two tasks of another wait, so that a lock is
# handed over both through Redis and inside a client.
set -eu
cd "$(dirname "$0")/.."

CARGO=${CARGO:-cargo}
target=${CARGO_TARGET_DIR:-target}
few=10
more=40
list=${1:-}

# A server of its own in any case: the lock has a fixed name.
unset REDIS_URL
. scripts/with-redis.sh

if ! command -v valgrind >/dev/null; then
    sudo=
    [ "$(id -u)" -eq 0 ] || sudo="sudo -n"
    echo "installing valgrind by apt-get" >&2
    install="env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120 install -y --no-install-recommends"
    # shellcheck disable=SC2086 # commands are words
    if ! $sudo $install valgrind >"$home/output" 2>&1 &&
        ! { $sudo apt-get -qq update && $sudo $install valgrind; } >"$home/output" 2>&1; then
        cat "$home/output" >&2
        echo "valgrind is missing, and apt-get could not install it" >&2
        exit 69
    fi
fi

# Of the library and the program alone valgrind is to know the files.
lines='debug="line-tables-only"'
$CARGO build --quiet --package plain-locks --features under-valgrind \
    --config "profile.dev.package.watchlock.$lines" --config "profile.dev.package.plain-locks.$lines"
$CARGO build --quiet --package watchlock-support --bin house

# calls TIMES [contended]: writes how often each function of src was called, as callgrind counts it.
calls() {
    # shellcheck disable=SC2086 # `contended` or nothing
    valgrind --quiet --tool=callgrind --compress-strings=no --callgrind-out-file="$home/calls-$1" \
        "$target/debug/plain-locks" "$REDIS_URL" $1 ${2:-} >"$home/output" 2>&1 || {
        cat "$home/output" >&2
        exit 1
    }
}

# way TITLE [contended]
way() {
    calls "$few" "${2:-}"
    calls "$more" "${2:-}"
    awk -v src="$PWD/src/" -v needed=$(((more - few) / 2)) '
        FNR == 1 { run++; from = "" }
        # The callee is in the same file unless a line says otherwise.
        /^f[lie]=/ { from = substr($0, 4) }
        /^cf[li]=/ { to = substr($0, 5) }
        /^cfn=/ { callee = substr($0, 5) }
        /^calls=/ {
            if (to == "") to = from
            if (index(to, src) == 1)
                grown[to "\n" callee] += (run == 2 ? 1 : -1) * substr($1, 7)
            to = ""
        }
        END {
            for (place in grown)
                if (grown[place] >= needed) {
                    split(place, part, "\n")
                    print substr(part[1], length(src) + 1)
                }
        }' "$home/calls-$few" "$home/calls-$more" | sort -u >"$home/way"
    printf '%-48s %s\n' "$1" "$(wc -l <"$home/way")"
    [ "$list" != --list ] || sed 's/^/    /' "$home/way"
    while read -r file; do
        grep -qF "${file##*/}" ARCHITECTURE.md || echo "$file" >>"$home/unknown"
    done <"$home/way"
}

# shellcheck disable=SC2086 # `--list` or nothing
"$target/debug/house" $list
way "files on the way of an uncontended lock()"
way "files on the way of a contended lock()" contended
[ ! -s "$home/unknown" ] || {
    echo "ARCHITECTURE.md does not name these files on the way of a lock():"
    sort -u "$home/unknown"
    exit 1
} >&2
