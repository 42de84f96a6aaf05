#!/bin/sh
# Starts a Redis Cluster of three masters on this machine, until Ctrl-C: ports 7001 to 7003 of 127.0.0.1, or three from
# FIRST_PORT on. Nothing is saved.
#
#   scripts/cluster.sh [FIRST_PORT]
set -eu

first=${1:-7001}
. "$(dirname "$0")/until-stopped.sh"

# The ids of the three, so that each knows the others from the start.
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
    own=$((first + node))
    mkdir "$folder/$own"
    describe "$node" >"$folder/$own/nodes.conf"
    start "$own" --save '' --cluster-enabled yes --cluster-node-timeout 1000
done
for node in 0 1 2; do
    said $((first + node)) 'Cluster state changed: ok'
done
echo "a cluster is ready: redis://127.0.0.1:$first/ redis://127.0.0.1:$((first + 1))/ redis://127.0.0.1:$((first + 2))/"
wait
