#!/bin/sh
# Runs the peer on the real redsync, for the tests of simple locks (JSON lines on standard input and output), after
# building it if need be.
#
#   scripts/redsync-peer.sh [--build]
#
# The versions are pinned in tests/interop/redsync/go.mod and go.sum. With --build it only builds. Ends with status 69
# if there is no Go.
set -eu

project=$(cd "$(dirname "$0")/../tests/interop/redsync" && pwd)
target=$project/target

if ! command -v go >/dev/null 2>&1; then
    echo "interop: go is missing; the tests against redsync need Go 1.22 or newer (Debian: apt-get install golang-go)" >&2
    exit 69
fi

# Tests run at the same time: the first builds, the others wait for it.
mkdir -p "$target"
exec 9>"$target/lock"
flock 9
stamp=$(cat "$project/go.mod" "$project/go.sum" "$project/main.go" | cksum)
if [ "$(cat "$target/stamp" 2>/dev/null || true)" != "$stamp" ]; then
    rm -f "$target/stamp"
    (cd "$project" && CGO_ENABLED=0 go build -mod=readonly -trimpath -o "$target/redsync-peer" .) >&2 </dev/null
    printf '%s\n' "$stamp" >"$target/stamp"
fi
exec 9>&-

if [ "${1:-}" != --build ]; then
    exec "$target/redsync-peer"
fi
