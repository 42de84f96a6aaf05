# Part of scripts that run servers on this machine until they end, as by Ctrl-C; they source it. Each server has a folder of
# its own, which is deleted at the end.
# shellcheck shell=sh

server=$("$(dirname "$0")/redis-server.sh")
folder=$(mktemp -d)
all=
cleanup() {
    status=$?
    trap - EXIT
    # shellcheck disable=SC2086 # process ids are words
    [ -z "$all" ] || kill $all 2>/dev/null || true
    wait
    rm -rf "$folder"
    exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# start PORT ARGUMENT...: a server in the folder of its port
start() {
    port=$1
    shift
    mkdir -p "$folder/$port"
    "$server" "$@" --bind 127.0.0.1 --port "$port" --dir "$folder/$port" >"$folder/log-$port" &
    echo $! >"$folder/pid-$port"
    all="$all $!"
}

# said PORT TEXT: waits until the server has logged TEXT. One whose port is taken ends at once.
said() {
    tries=0
    until grep -q "$2" "$folder/log-$1"; do
        tries=$((tries + 1))
        if [ "$tries" -gt 300 ] || ! kill -0 "$(cat "$folder/pid-$1")" 2>/dev/null; then
            cat "$folder/log-$1" >&2
            exit 1
        fi
        sleep 0.1
    done
}
