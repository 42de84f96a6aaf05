#!/bin/sh
# Builds the Java peer of the interop tests, unless it is built already, and prints the path of the program to run.
#
#   scripts/interop-peer.sh [4|3|VERSION]
#
# 4 (the default) and 3 are the pinned Redisson versions of tests/interop/pom.xml; any other version that Maven Central
# has can be named in full. The program takes INTEROP_JAVA_OPTS instead of its own JVM options, which suit short
# tests, not benchmarks.
# Ends with status 69 where there is no JDK 17 or no Maven.
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

build() {
    mvn -q -B -f "$project/pom.xml" -Dredisson.version="$version" "$@" process-classes
}

# A program and not a command line: its path may hold spaces, and a signal to it reaches the JVM itself.
launcher() {
    cat <<'END'
#!/bin/sh
here=$(cd "$(dirname "$0")" && pwd)
exec java ${INTEROP_JAVA_OPTS--XX:+UseSerialGC -XX:TieredStopAtLevel=1} \
    -cp "$here/classes:$here/lib/*" watchlock.interop.Peer
END
}

for tool in java javac mvn; do
    command -v "$tool" >/dev/null 2>&1 || missing "$tool"
done
javac -version 2>&1 | grep -Eq '^javac (1[7-9]|[2-9][0-9])' || missing "a JDK of version 17 or later"

case ${1:-4} in
3 | 4) version=$(pinned "${1:-4}") ;;
*) version=$1 ;;
esac

target=$project/target/$version
mkdir -p "$target"
# Tests run at the same time: the first builds, the others wait for it.
exec 9>"$project/target/.lock-$version"
flock 9

stamp=$(cat "$project/pom.xml" "$project"/src/main/java/watchlock/interop/*.java "$0" | cksum)
if [ "$(cat "$target/stamp" 2>/dev/null || true)" != "$stamp" ]; then
    rm -rf "$target/classes" "$target/lib"
    # First from what is on the machine; only then from the network.
    build -o >/dev/null 2>&1 || build >&2
    launcher >"$target/peer"
    chmod +x "$target/peer"
    printf '%s\n' "$stamp" >"$target/stamp"
fi

echo "$target/peer"
