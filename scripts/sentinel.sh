#!/bin/sh
# Starts a master, its replica and three sentinels that watch them, on this machine, until Ctrl-C: ports 7101 to 7105 of
# 127.0.0.1, or five from FIRST_PORT on. The sentinels call the master `locks`. Nothing is saved.
#
#   scripts/sentinel.sh [FIRST_PORT]
set -eu

first=${1:-7101}
master=$first
replica=$((first + 1))
. "$(dirname "$0")/until-stopped.sh"

start "$master" --save '' --repl-diskless-sync-delay 0
said "$master" 'Ready to accept connections'
start "$replica" --save '' --repl-diskless-sync-delay 0 --replicaof "127.0.0.1 $master"
said "$replica" 'sync: Finished with success'

urls=
for number in 2 3 4; do
    port=$((first + number))
    # The sentinels write their findings into their configuration.
    printf 'sentinel monitor locks 127.0.0.1 %s 2\nsentinel down-after-milliseconds locks 1000\n' "$master" \
        >"$folder/sentinel-$port.conf"
    start "$port" "$folder/sentinel-$port.conf" --sentinel
    urls="$urls redis://127.0.0.1:$port/"
done
# No replica takes a master's place until all know each other, which takes a moment.
for number in 2 3 4; do
    port=$((first + number))
    said "$port" '+slave slave'
    said "$port" '+sentinel sentinel'
done
echo "sentinels are ready:$urls"
wait
