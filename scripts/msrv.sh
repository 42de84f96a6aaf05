#!/bin/sh
# Builds the crates with the oldest Rust that Cargo.toml promises, if rustup has it. If not, it prints that
# only clippy's `incompatible_msrv` and cargo's resolver guard the promise.
set -eu
cd "$(dirname "$0")/.."

msrv=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
toolchain=
if command -v rustup >/dev/null 2>&1; then
    toolchain=$(rustup toolchain list | sed -n "s/^\($msrv[.-][^ ]*\).*/\1/p" | head -n 1)
fi
if [ -z "$toolchain" ]; then
    echo "NOT BUILT with Rust $msrv: that toolchain is not here (rustup toolchain install $msrv)."
    echo "clippy::incompatible_msrv and the resolver (rust-version in Cargo.toml) stand in for it."
    exit 0
fi
echo "building with $toolchain"
# A target directory of its own: two compilers in one rebuild everything in turns.
CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/msrv"
export CARGO_TARGET_DIR
cargo "+$toolchain" check --quiet
cargo "+$toolchain" check --quiet --features tls,metrics
cargo "+$toolchain" check --quiet --package watchlock-test
cargo "+$toolchain" check --quiet --package watchlock-cli
