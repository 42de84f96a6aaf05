# Part of scripts that need a server: they source it. Starts a redis-server of their own on a free loopback port and
# exports its REDIS_URL, unless that names one already. `$home` is a folder that is gone with the script, as the server is.
# shellcheck shell=sh

server=

cleanup() {
    status=$?
    trap - EXIT
    if [ -n "$server" ]; then
        kill "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
    fi
    rm -rf "$home"
    exit "$status"
}
home=$(mktemp -d)
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# Whether the server that we started serves, and not another one that has the port.
serves() {
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        kill -0 "$server" 2>/dev/null || return 1
        if grep -q "Ready to accept connections" "$home/log" 2>/dev/null; then
            return 0
        fi
        sleep 0.1
    done
    return 1
}

start() {
    binary=$(scripts/redis-server.sh)
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        port=$(awk 'BEGIN { srand(); print 20000 + int(rand() * 12000) }' </dev/null)
        port=$((port + $$ % 1000))
        : >"$home/log"
        "$binary" --port "$port" --bind 127.0.0.1 --save "" --appendonly no --dir "$home" --logfile "$home/log" \
            >/dev/null 2>&1 </dev/null &
        server=$!
        if serves; then
            REDIS_URL=redis://127.0.0.1:$port/
            export REDIS_URL
            return 0
        fi
        kill "$server" 2>/dev/null || true
        wait "$server" 2>/dev/null || true
        server=
        sleep 1
    done
    echo "redis-server does not start:" >&2
    cat "$home/log" >&2
    exit 1
}

if [ -z "${REDIS_URL:-}" ]; then
    start
fi
