#!/bin/sh
# Starts a Redis Cluster of three masters on this machine, until Ctrl-C: ports 7001 to 7003 of 127.0.0.1, or three from
# the one that is given. Nothing is saved.
#
#   scripts/cluster.sh [FIRST_PORT]
set -eu

first=${1:-7001}
server=$("$(dirname "$0")/redis-server.sh")
folder=$(mktemp -d)
nodes=
cleanup() {
    trap - EXIT INT TERM
    # shellcheck disable=SC2086 # process ids are words
    [ -z "$nodes" ] || kill $nodes 2>/dev/null || true
    wait
    rm -rf "$folder"
}
trap cleanup EXIT INT TERM

# Who the three are, so that none has to be introduced to the others.
describe() {
    for other in 0 1 2; do
        port=$((first + other))
        myself=
        [ "$other" -ne "$1" ] || myself=myself,
        echo "000000000000000000000000000000000000000$other 127.0.0.1:$port@$((port + 10000))" \
            "${myself}master - 0 0 $((other + 1)) connected $((16384 * other / 3))-$((16384 * (other + 1) / 3 - 1))"
    done
    echo "vars currentEpoch 3 lastVoteEpoch 0"
}

for node in 0 1 2; do
    mkdir "$folder/$node"
    describe "$node" >"$folder/$node/nodes.conf"
    "$server" --bind 127.0.0.1 --port $((first + node)) --dir "$folder/$node" --save '' \
        --cluster-enabled yes --cluster-node-timeout 1000 >"$folder/$node/log" &
    nodes="$nodes $!"
done

for node in 0 1 2; do
    tries=0
    until grep -q 'Cluster state changed: ok' "$folder/$node/log"; do
        tries=$((tries + 1))
        if [ "$tries" -gt 150 ]; then
            cat "$folder/$node/log" >&2
            exit 1
        fi
        sleep 0.1
    done
done
echo "a cluster is ready: redis://127.0.0.1:$first/ redis://127.0.0.1:$((first + 1))/ redis://127.0.0.1:$((first + 2))/"
wait
