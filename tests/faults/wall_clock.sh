#!/bin/sh
# F13 by hand: runs the tests of wall_clock.rs against a redis-server whose wall clock can be stepped.
# Needs a C compiler: the shim stands between the server and gettimeofday, and adds the seconds in a file.
set -eu
cd "$(dirname "$0")/../.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
server=${REDIS_SERVER:-$(command -v redis-server)}

cat > "$dir/shim.c" <<'SHIM'
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int result = (int)syscall(SYS_gettimeofday, now, zone);
    const char *path = getenv("FAKED_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        char text[32] = {0};
        if (read(file, text, sizeof text - 1) > 0) now->tv_sec += strtol(text, NULL, 10);
        close(file);
    }
    return result;
}
SHIM
cc -O2 -shared -fPIC -o "$dir/shim.so" "$dir/shim.c"

cat > "$dir/redis-server" <<SERVER
#!/bin/sh
export LD_PRELOAD=$dir/shim.so
exec $server "\$@"
SERVER
chmod +x "$dir/redis-server"
echo +0 > "$dir/clock"
REDIS_SERVER=$dir/redis-server FAKED_CLOCK=$dir/clock \
    cargo test --test faults wall_clock -- --ignored --test-threads=1
