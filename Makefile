# Two commands are enough on a fresh machine: `make demo` and `make test`. CONTRIBUTING.md says what each is for.
#
# A redis-server is found by scripts/redis-server.sh, which installs it by apt-get when there is none; set
# REDIS_SERVER to use another binary.

CARGO ?= cargo
CHAOS_SECONDS ?= 60
SOAK_MINUTES ?= 20
MUTANTS ?= src/engine/hold/state.rs
BENCH_SECONDS ?= 300
INTEROP_SECONDS ?= 60

with_redis = REDIS_SERVER="$$(scripts/redis-server.sh)" && export REDIS_SERVER &&

target = "$${CARGO_TARGET_DIR:-target}"
features = --features watchlock/tls,watchlock/metrics,watchlock/blocking
# Optimized programs; in one go, so that both stand on one build of what they depend on. BUILD=debug takes those of the
# tests instead: CI only sees that all is well.
BUILD = release
build_release = $(CARGO) build --quiet --release --package watchlock-worker --package $(1) --bin worker --bin $(2)
build_debug = $(CARGO) build --quiet --workspace --exclude watchlock-simulation --bins $(features)
build = $(call build_$(BUILD),$(1),$(2))

# Tests mostly wait: two threads for each processor.
threads = RUST_TEST_THREADS=$${RUST_TEST_THREADS:-$$((2 * $$(getconf _NPROCESSORS_ONLN)))}

# With tokio's own randomness by the seed, which is a build of its own.
simulate = CARGO_TARGET_DIR=$${CARGO_TARGET_DIR:-target}/simulation \
	RUSTFLAGS="--cfg tokio_unstable$(if $(FAST), -C target-cpu=native)" \
	$(if $(FAST),CARGO_PROFILE_RELEASE_LTO=fat CARGO_PROFILE_RELEASE_CODEGEN_UNITS=1) $(CARGO)

.DEFAULT_GOAL := help
.PHONY: help demo test servers failover cluster interop chaos simulate simulate-controls soak bench bench-tools lint doc house mutants msrv package minimal ci

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

demo: ## the story in a minute, on a real redis-server
	@scripts/demo.sh

test: ## all tests, examples and documentation tests; names the ten slowest
	@$(with_redis) scripts/tests.sh

servers: ## what depends on the server, on each kind of server that can be installed (CHAOS_SECONDS); writes a table into the docs
	@$(with_redis) $(call build,watchlock-support,chaos) && \
	export $(threads) && CHAOS_SECONDS=$(CHAOS_SECONDS) WRITE=1 scripts/try-servers.sh

failover: ## what a lock survives when the master is killed, case by case, on two servers
	@scripts/failover.sh

cluster: ## what every kind of lock does, on clusters; and slots that move and masters that fail (CLUSTER_SECONDS, CLUSTER_SEED)
	@$(with_redis) \
	$(CARGO) build --quiet --package watchlock-worker && \
	TEST_IN_CLUSTER=1 $(threads) $(CARGO) test --quiet --test kinds && \
	CLUSTER_SECONDS=$${CLUSTER_SECONDS:-60} $(CARGO) test --quiet --test cluster storm -- --nocapture && \
	for name in redis-6.2 valkey-9.1; do \
		server=$$(scripts/servers.sh $$name) || continue; \
		REDIS_SERVER=$$server $(CARGO) test --quiet --test cluster -- --skip storm --skip acl --skip was_cut_off || exit 1; \
	done

interop: ## Java and Rust on one lock (INTEROP_SECONDS of faults; needs a JDK 17 and Maven)
	@$(with_redis) \
	$(CARGO) build --quiet --package watchlock-worker && \
	$(CARGO) test --quiet --test interop && \
	INTEROP_REDISSON=3 $(CARGO) test --quiet --test interop && \
	INTEROP_SECONDS=$(INTEROP_SECONDS) $(CARGO) test --quiet --test campaign mixed

chaos: ## faults at random and a check of the history afterwards (CHAOS_SECONDS, CHAOS_SEED)
	@$(with_redis) $(call build,watchlock-support,chaos) && \
	CHAOS_SECONDS=$(CHAOS_SECONDS) $(target)/$(BUILD)/chaos

simulate: ## whole clients in one thread under simulated time: SEEDS=FROM..UNTIL, or SECONDS of them; TRACE=1 shows all of a seed (WATCH=COMMAND with its answers), QUORUM=1 is on the servers of a quorum, PERMITS=1 has semaphores, REPLICA=1 a replica that takes over, SHRINK=1 makes what fails smaller, FAST=1 runs twice as fast and takes minutes to build
	@$(simulate) run --quiet --release --package watchlock-simulation --bin simulate -- \
		$(if $(SEEDS),--seeds $(SEEDS),--seconds $(or $(SECONDS),60)) $(if $(TRACE),--trace) $(if $(WATCH),--watch '$(WATCH)') $(if $(QUORUM),--quorum) $(if $(PERMITS),--permits) $(if $(REPLICA),--replica) $(if $(SHRINK),--shrink) $(SMALLER)

simulate-controls: ## switches off one rule after the other: each must be found within 2 000 seeds (CONTROLS="parts of names")
	@$(CARGO) run --quiet --release --package watchlock-simulation --bin controls -- $(CONTROLS)

soak: ## the same for SOAK_MINUTES, with an eye on memory, files and threads
	@$(with_redis) $(call build,watchlock-support,chaos) && \
	export SOAK_MINUTES=$(SOAK_MINUTES) && \
	$(CARGO) test --quiet --release --test soak && \
	$(target)/$(BUILD)/chaos

bench: ## speed against the floor, other crates and Redisson (BENCH_SECONDS; BENCH_QUICK=1 only sees that it runs)
	@$(with_redis) $(call build,watchlock-compare,watchlock-compare) && \
	BENCH_SECONDS=$(BENCH_SECONDS) $(target)/$(BUILD)/watchlock-compare

bench-tools: ## what the command line and the metrics cost, in two minutes
	@$(with_redis) $(CARGO) build --quiet --release --package watchlock-tools --package watchlock-cli && \
	$(target)/release/watchlock-tools

lint: ## format and clippy; warnings are errors
	@$(CARGO) fmt --all --check
	@$(CARGO) clippy --quiet --workspace --all-targets $(features) -- --deny warnings
	@$(CARGO) clippy --quiet -- --deny warnings

doc: ## the documentation; warnings are errors
	@RUSTDOCFLAGS="--deny warnings" $(CARGO) doc --quiet --no-deps --workspace $(features)

house: ## lines, types, imports, and the files that a lock() passes; `scripts/house.sh --list` names them
	@scripts/house.sh

mutants: ## which changes of MUTANTS (a glob of files) no unit test notices; needs cargo-mutants, and hours
	@SIMULATION_RUNS=1000 $(CARGO) mutants --package watchlock --cargo-arg=--config=profile.dev.package.watchlock.opt-level=2 --file "$${MUTANTS:?a file, like src/engine/gate/ticket.rs}" --no-shuffle --timeout 600 -- --lib

msrv: ## builds with the oldest supported Rust, if it is installed
	@scripts/msrv.sh

package: ## the crates as crates.io would get them: they build and pass their tests by themselves
	@scripts/package.sh

minimal: ## builds with the oldest versions of dependencies, if there is a nightly
	@scripts/minimal-versions.sh

ci: ## all of it, as CI runs it
	@.ci/run
