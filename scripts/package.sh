#!/bin/sh
# Packs the crates as crates.io would get them, and checks the packages: they compile, with their examples and their own
# tests, without anything else from this repository. `scripts/package.sh unpack FOLDER` only unpacks them there, one in
# the other.
set -eu
cd "$(dirname "$0")/.."

mkdir -p "${CARGO_TARGET_DIR:-target}"
target=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)

# Together: the others stand on a version of the library that is not published yet.
cargo package --quiet --package watchlock --package watchlock-test --package watchlock-cli --allow-dirty --no-verify

# unpack CRATE FOLDER
unpack() {
    rm -rf "$2"
    mkdir -p "$2"
    # Cargo compares the times of files, and those in a package are all the same.
    tar --extract --touch --gzip --file "$target/package/$1-$version.crate" --directory "$2" --strip-components 1
}

if [ "${1:-}" = unpack ]; then
    unpack watchlock "$2"
    unpack watchlock-test "$2/watchlock-test"
    unpack watchlock-cli "$2/cli"
    exit
fi
folder=$target/packaged
unpack watchlock "$folder"
unpack watchlock-test "$folder-test"
unpack watchlock-cli "$folder-cli"
cd "$folder"
# Most dependencies of the package are built already.
CARGO_TARGET_DIR=$target
export CARGO_TARGET_DIR
# What they do is the same here, and `make test` shows it: that all of it compiles shows that nothing is missing.
cargo check --quiet --profile test --lib --examples
files=$(find . -type f | wc -l)
cd "$folder-test"
patch="patch.crates-io.watchlock.path='$folder'"
cargo check --quiet --config "$patch" --profile test --lib --examples
others=$(find . -type f | wc -l)
cd "$folder-cli"
cargo check --quiet --config "$patch" --profile test --bins
echo "the packages have $files, $others and $(find . -type f | wc -l) files and work by themselves"
