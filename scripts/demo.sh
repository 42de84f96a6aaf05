#!/bin/sh
# Runs the demo on a real redis-server: one of its own on a free loopback port, or that of REDIS_URL, where only keys
# under a random prefix are touched, and removed. Ends with a non-zero status if a number is wrong; leaves nothing behind.
set -eu
cd "$(dirname "$0")/.."

# For the quorum, also beside a REDIS_URL.
REDIS_SERVER=$(scripts/redis-server.sh)
export REDIS_SERVER
CARGO=${CARGO:-cargo}
# In one go, so that both stand on one build of what they depend on.
build="$CARGO build --quiet --package watchlock-demo --package watchlock-worker"
echo "building watchlock and the demo: about 2 minutes the first time"
$build
. scripts/with-redis.sh
"${CARGO_TARGET_DIR:-target}/debug/watchlock-demo"
