#!/bin/sh
# Packs the crate as crates.io would get it, and checks the package: it builds, with its examples, and its own tests
# pass, without anything else from this repository. `scripts/package.sh unpack FOLDER` only unpacks it there.
set -eu
cd "$(dirname "$0")/.."

mkdir -p "${CARGO_TARGET_DIR:-target}"
target=$(cd "${CARGO_TARGET_DIR:-target}" && pwd)
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)

# unpack FOLDER
unpack() {
    rm -rf "$1"
    mkdir -p "$1"
    cargo package --quiet --package watchlock --allow-dirty --no-verify
    # Cargo compares the times of files, and those in a package are all the same.
    tar --extract --touch --gzip --file "$target/package/watchlock-$version.crate" --directory "$1" --strip-components 1
}

if [ "${1:-}" = unpack ]; then
    unpack "$2"
    exit
fi
folder=$target/packaged
unpack "$folder"
cd "$folder"
# Most dependencies of the package are built already.
CARGO_TARGET_DIR=$target
export CARGO_TARGET_DIR
# Without the model of all orders, which `make test` runs: it takes minutes, and is the same here.
SIMULATION_RUNS=1000 cargo test --quiet --lib --examples -- --skip model_tests
cargo test --quiet --doc
echo "the package has $(find . -type f | wc -l) files and works by itself"
