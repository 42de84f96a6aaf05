#!/bin/sh
# Prints the path of a redis-server: the one that REDIS_SERVER names, else the one in the PATH, else one that apt-get
# installs now. Otherwise it prints what is missing to standard error and ends with status 69.
set -eu

found() {
    if server=$(command -v "${REDIS_SERVER:-redis-server}"); then
        printf '%s\n' "$server"
        exit 0
    fi
}

missing() {
    echo "redis-server is missing, and $1. Install Redis 6.2 or newer, or name the binary in REDIS_SERVER." >&2
    exit 69
}

found
[ -z "${REDIS_SERVER:-}" ] || missing "REDIS_SERVER names no program: $REDIS_SERVER"
command -v apt-get >/dev/null || missing "there is no apt-get to install it with"
sudo=
if [ "$(id -u)" -ne 0 ]; then
    sudo="sudo -n"
    $sudo true 2>/dev/null || missing "it takes root, or sudo without a password, to install it"
fi

policy=/usr/sbin/policy-rc.d
made_policy=
log=$(mktemp)
cleanup() {
    rm -f "$log"
    [ -z "$made_policy" ] || $sudo rm -f "$policy"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# The package would start a server of its own on the standard port, which nobody asked for.
if [ ! -e "$policy" ]; then
    made_policy=yes
    printf '#!/bin/sh\nexit 101\n' | $sudo tee "$policy" >/dev/null
    $sudo chmod 755 "$policy"
fi

echo "installing redis-server by apt-get" >&2
install="env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120 install -y --no-install-recommends"
# shellcheck disable=SC2086 # commands are words
if ! $sudo $install redis-server >"$log" 2>&1 &&
    ! { $sudo apt-get -qq update && $sudo $install redis-server; } >"$log" 2>&1; then
    cat "$log" >&2
    missing "apt-get could not install it"
fi
found
missing "it is not in the PATH although it was installed"
