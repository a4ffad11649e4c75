# Everything a fresh machine with Rust needs: `make demo` to see it, `make test` to check it.

CARGO ?= cargo
NEED := .ci/need
SEEDS ?= 20000
SCHEDULES ?= 25000

.PHONY: help demo test test-interop test-browser test-nginx lint doc bench bench-quick faults faults-quick schedules sim mutants

help: ## List the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Flash sale on three processes and one Redis: without a lock, with the macro, with the layer (ARGS="--help")
	@$(NEED) redis-server
	$(CARGO) run --release --package seckill --bin demo -- $(ARGS)

test: need-test lint doc ## Formatting, lints, unit, integration, UI and doc tests, rustdoc
	$(CARGO) test --workspace --all-features

test-interop: ## Against redis-py and node-redlock: who holds a lock is seen by all
	@$(NEED) redis-server python3 python3-venv node npm
	tests/interop/run

test-browser: ## The web page of the flash sale, pressed in headless Chromium
	@$(NEED) redis-server node npm chromium
	tests/browser/run

test-nginx: ## The flash sale behind a real nginx
	@PATH="$$PATH:/usr/sbin" $(NEED) redis-server nginx
	$(CARGO) test --package seckill --test nginx

faults: ## The whole programme of faults: model, simulation, proxy, processes, mutants; writes tests/FAULTS.md
	@$(NEED) redis-server git
	$(CARGO) run --package lock-tests --all-features --bin lock-faults -- $(ARGS)

faults-quick: ## The same in a small dose; writes into target/ (ARGS="--help")
	@$(NEED) redis-server git
	$(CARGO) run --package lock-tests --all-features --bin lock-faults -- --quick $(ARGS)

sim: ## The real client on a simulated network, by seed (SEEDS=20000)
	@$(NEED) redis-server
	LOCK_SIM_SEEDS=$(SEEDS) $(CARGO) test --profile programme --package lock-tests --all-features --test sim

schedules: ## Tasks of one process on one key, in many interleavings (SCHEDULES=25000, of each of four kinds)
	LOCK_SCHEDULES=$(SCHEDULES) RUSTFLAGS="--cfg lock_shuttle" $(CARGO) test --package lock-core --no-default-features \
		--features test-util --target-dir target/schedules --lib schedules

mutants: ## Known bugs, planted one at a time: the tests must notice each (ARGS="--list")
	@$(NEED) redis-server git
	$(CARGO) run --package lock-tests --bin mutants -- $(ARGS)

.PHONY: need-test
need-test:
	@$(NEED) redis-server git rustfmt cargo-clippy

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --all-features -- --deny warnings
	$(CARGO) clippy --package lock-core --no-default-features -- --deny warnings
	@for feature in macros redis redis-tls test-util uuid; do \
		echo "lock-core, feature $$feature alone"; \
		$(CARGO) clippy --package lock-core --no-default-features --features $$feature -- --deny warnings || exit 1; \
	done
	$(CARGO) clippy --package lock-tower --no-default-features -- --deny warnings
	$(CARGO) clippy --package lock-tower --no-default-features --features axum -- --deny warnings
	$(CARGO) test --package lock-tests --test architecture

doc:
	RUSTDOCFLAGS="--deny warnings" $(CARGO) doc --workspace --no-deps --all-features

bench: ## Measure against a bare connection and other crates, within 20 minutes; writes benches/RESULTS.md
	@$(NEED) redis-server
	$(CARGO) bench --package lock-benches --bench locks --features peers -- $(ARGS)

bench-quick: ## The same within 2 minutes, for figures not worth quoting; writes to target/ (ARGS="--help")
	@$(NEED) redis-server
	$(CARGO) bench --package lock-benches --bench locks --features peers -- --quick $(ARGS)
