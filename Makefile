# `make demo` shows the locks at work and `make test` checks them, on any machine with Rust.

CARGO ?= cargo
NEED := .ci/need
SEEDS ?= 20000
# Most tests wait rather than work, so two cores serve four of them.
TESTS_AT_A_TIME ?= 4
SCHEDULES ?= 25000

.PHONY: help demo test test-servers test-interop test-browser test-nginx test-alerts lint doc package
.PHONY: bench bench-quick faults faults-quick schedules sim mutants

help: ## List the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## Flash sale on three processes, without a lock and with one (ARGS="--help")
	@$(NEED) redis-server
	$(CARGO) run --release --package seckill --bin demo -- $(ARGS)

test: need-test lint doc ## Formatting, lints, documentation, and all tests of the workspace
	$(CARGO) test --workspace --all-features -- --test-threads $(TESTS_AT_A_TIME)
	$(CARGO) test --package lock-core --no-default-features --test paused_clock

test-servers: ## What depends on the server, on Redis 6.2 and 8.2, Valkey and the installed one
	@$(NEED) redis-server python3 python3-venv
	tests/servers/run

test-interop: ## Exclusion between this library, redis-py, node-redlock and (with Go) redsync
	@PATH="$$PATH:/usr/local/go/bin" $(NEED) redis-server python3 python3-venv node npm $(if $(LOCK_TESTS_ALL),go)
	tests/interop/run

test-browser: ## The web page of the flash sale and its console in headless Chromium
	@$(NEED) redis-server node npm chromium
	tests/browser/run

test-nginx: ## The flash sale behind a real nginx
	@PATH="$$PATH:/usr/sbin" $(NEED) redis-server nginx
	$(CARGO) test --package seckill --test nginx

test-alerts: ## The alerts for Prometheus, by its own promtool
	@$(NEED) promtool
	promtool check rules examples/observability/alerts.yml
	promtool test rules tests/alerts/cases.yml

faults: ## All fault experiments, within an hour and a half; writes tests/FAULTS.md
	@$(NEED) redis-server git
	$(CARGO) run --package lock-tests --all-features --bin lock-faults -- $(ARGS)

faults-quick: ## The same in about 8 minutes; writes to target/ (ARGS="--help")
	@$(NEED) redis-server git
	$(CARGO) run --package lock-tests --all-features --bin lock-faults -- --quick $(ARGS)

sim: ## The client on a simulated network, by seed (SEEDS=20000)
	@$(NEED) redis-server
	LOCK_SIM_SEEDS=$(SEEDS) $(CARGO) test --profile programme --package lock-tests --all-features --test sim

schedules: ## Interleavings of tasks that share a key in one process (SCHEDULES=25000)
	LOCK_SCHEDULES=$(SCHEDULES) RUSTFLAGS="--cfg lock_shuttle" $(CARGO) test --package lock-core --no-default-features \
		--features test-util --target-dir target/schedules --lib schedules

mutants: ## Plants known bugs one at a time: a test must fail for each (ARGS="--list")
	@$(NEED) redis-server git
	$(CARGO) run --package lock-tests --bin mutants -- $(ARGS)

.PHONY: need-test
need-test:
	@$(NEED) redis-server git rustfmt cargo-clippy $(if $(LOCK_TESTS_ALL),valgrind)

lint: ## Formatting, clippy with each feature, imports, layers and wording
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --all-features -- --deny warnings
	$(CARGO) clippy --package lock-core --no-default-features -- --deny warnings
	@for feature in macros metrics redis redis-cluster redis-quorum redis-tls serde test-util uuid; do \
		echo "lock-core, feature $$feature alone"; \
		$(CARGO) clippy --package lock-core --no-default-features --features $$feature -- --deny warnings || exit 1; \
	done
	$(CARGO) clippy --package lock-tower --no-default-features -- --deny warnings
	$(CARGO) clippy --package lock-tower --no-default-features --features axum -- --deny warnings
	$(CARGO) clippy --package lock-tower --no-default-features --features console -- --deny warnings
	$(CARGO) test --package lock-tests --test architecture

doc: ## The documentation, without warnings
	RUSTDOCFLAGS="--deny warnings" $(CARGO) doc --workspace --no-deps --all-features

package: ## The archives of the three crates to publish, each built from its archive
	$(CARGO) package --allow-dirty --package lock-macros --package lock-core --package lock-tower

bench: ## Speed beside other crates, within 20 minutes; writes benches/RESULTS.md
	@$(NEED) redis-server
	$(CARGO) bench --package lock-benches --bench locks --features peers -- $(ARGS)

bench-quick: ## The same within 2 minutes, too short to quote; writes to target/ (ARGS="--help")
	@$(NEED) redis-server
	$(CARGO) bench --package lock-benches --bench locks --features peers -- --quick $(ARGS)
