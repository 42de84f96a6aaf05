#!/bin/sh
# Builds the packaged crates with the oldest versions that Cargo.toml allows, if a nightly cargo is there to choose them. If
# not, it prints that nothing guards the lower bounds.
set -eu
cd "$(dirname "$0")/.."

if ! command -v rustup >/dev/null 2>&1 || ! cargo +nightly --version >/dev/null 2>&1; then
    echo "MINIMAL VERSIONS NOT BUILT: no nightly toolchain is here (rustup toolchain install nightly)."
    exit 0
fi
target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target/minimal"
target=$(cd "$target/minimal" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
CARGO_TARGET_DIR=$target
export CARGO_TARGET_DIR
scripts/package.sh unpack "$folder"
cd "$folder"
rm -f Cargo.lock
# A nightly chooses them, for its option alone; the compiler in use builds them.
cargo +nightly update --quiet -Z direct-minimal-versions
# The other crates stand on it without the features.
cargo check --quiet --locked --features tls,metrics
echo "built with the oldest versions allowed:"
cargo tree --quiet --locked --features tls --edges normal --depth 1 --prefix none | sed 1d | sort | tr '\n' ';'
patch="patch.crates-io.watchlock.path='$folder'"
for crate in watchlock-test cli; do
    cd "$folder/$crate"
    rm -f Cargo.lock
    cargo +nightly update --quiet -Z direct-minimal-versions --config "$patch"
    cargo check --quiet --locked --config "$patch"
    cargo tree --quiet --locked --config "$patch" --edges normal --depth 1 --prefix none | grep -v ^watchlock | sort | tr '\n' ';'
    echo
done
