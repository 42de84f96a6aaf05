#!/bin/sh
# Runs the Java peer of the interop tests (JSON lines on standard input and output), after building it if need be.
#
#   scripts/interop-peer.sh [4|3|VERSION] [--build]
#
# 4 (the default) and 3 are the Redisson versions pinned in tests/interop/pom.xml; any other version that Maven Central
# has can be named in full. With --build it only builds. INTEROP_JAVA_OPTS replaces the JVM options, which suit short
# tests, not benchmarks. Ends with status 69 if there is no JDK 17 or no Maven.
set -eu

project=$(cd "$(dirname "$0")/../tests/interop" && pwd)

missing() {
    echo "interop: $1 is missing; the tests against Redisson need a JDK 17 and Maven" \
        "(Debian: apt-get install openjdk-17-jdk-headless maven)" >&2
    exit 69
}

pinned() {
    sed -n 's|.*<redisson.version>\(.*\)</redisson.version>.*|\1|p' "$project/pom.xml" | grep "^$1\." | head -n 1
}

# Maven by itself waits half an hour for a server that says nothing.
compile() {
    timeout 300 mvn -q -B -f "$project/pom.xml" -Dredisson.version="$version" -Dmaven.wagon.rto=30000 \
        -Daether.connector.requestTimeout=30000 "$@" process-classes >&2 </dev/null
}

# The JVM reads the classes of an archive in half of the time, and many tests start a JVM. The archive has what this run
# loads. Without a redis-server it is smaller; without an archive the JVM reads the classes.
archive() {
    redis= answer= port=$((20000 + $$ % 10000))
    if "${REDIS_SERVER:-redis-server}" --version >/dev/null 2>&1; then
        # It ends by itself if this script is killed.
        timeout 70 "${REDIS_SERVER:-redis-server}" --bind 127.0.0.1 --port "$port" --save "" >/dev/null 2>&1 &
        redis=$!
    fi
    mkfifo "$target/requests"
    timeout 60 java $quick -XX:ArchiveClassesAtExit="$target/peer.jsa" -cp "$classes" watchlock.interop.Peer \
        <"$target/requests" 2>/dev/null | {
        exec 3>"$target/requests"
        for request in \
            "\"op\": \"open\", \"url\": \"redis://127.0.0.1:$port/\"" \
            '"op": "lock", "owner": "a", "kind": "lock", "name": "archive"' \
            '"op": "unlock", "owner": "a", "kind": "lock", "name": "archive"'; do
            echo "{\"id\": 1, $request}" >&3 && read -r answer || break
        done
        exec 3>&-
        cat >/dev/null
    } || true
    rm "$target/requests"
    [ -z "$redis" ] || kill "$redis" 2>/dev/null || true
}

build() {
    stamp=$(cat "$0" "$project/pom.xml" "$project"/src/main/java/watchlock/interop/*.java | cksum)
    if [ "$(cat "$target/stamp" 2>/dev/null || true)" = "$stamp" ]; then
        return
    fi
    # Asked here alone: it starts a JVM.
    javac -version 2>&1 | grep -Eq '^javac (1[7-9]|[2-9][0-9])' || missing "a JDK of version 17 or later"
    rm -rf "$target"
    mkdir "$target"
    # First with what is on the machine, then from the network; what was fetched stays.
    compile -o 2>/dev/null || compile || compile || compile
    # No archive has classes of a folder.
    jar --create --file "$target/peer.jar" -C "$target/classes" .
    archive
    printf '%s\n' "$stamp" >"$target/stamp"
}

for tool in java javac mvn; do
    command -v "$tool" >/dev/null 2>&1 || missing "$tool"
done

case ${1:-4} in
3 | 4) version=$(pinned "${1:-4}") ;;
*) version=$1 ;;
esac
target=$project/target/$version
classes="$target/peer.jar:$target/lib/*"
quick="-XX:+UseSerialGC -XX:TieredStopAtLevel=1"

# Tests run at the same time: the first builds, the others wait for it.
mkdir -p "$project/target"
exec 9>"$project/target/$version.lock"
flock 9
build
exec 9>&-

if [ "${2:-}" != --build ]; then
    # shellcheck disable=SC2086 # options are words
    exec java ${INTEROP_JAVA_OPTS-$quick -XX:SharedArchiveFile="$target/peer.jsa"} -cp "$classes" watchlock.interop.Peer
fi
