# What can be done with this tree. `make` alone lists it.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# rustup installs there; a shell that was opened before does not know it yet.
export PATH := $(HOME)/.cargo/bin:$(PATH)

TARGET := $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),$(CURDIR)/target)
BIN := $(TARGET)/release
POLVO := $(BIN)/polvo

# End-to-end tests of `make test`, with what makes them short there. Each is an executable of tests/e2e that can be run
# by itself, and then takes its time; E2E_LONG are run by `make e2e-long`.
E2E := \
	idle:REACTORS=8 \
	upcalls \
	limits:FILES=250000,REACTORS=8 \
	three-mounts \
	locks:ROUNDS=100 \
	node-gone \
	replaced \
	handed-over:LEAVE=1 \
	grown:KILL=none \
	region-sets \
	partition:ROUNDS=3 \
	failover:ROUNDS=1 \
	cut-off:ROUNDS=1,KINDS=cut+out \
	stale-primary:ROUNDS=1,STOPS=2,OBSERVATIONS=3000 \
	held-back \
	set-back \
	scrub \
	posix-letter \
	overlay \
	mounting \
	ordinary-user \
	disjoint-writers:OPERATIONS=3000 \
	client-active \
	kill9:ROUNDS=10,REACTORS=3 \
	bad-input \
	repair \
	rename-storm:TIME=15 \
	crossed:TIME=8 \
	stale-hunter:OBSERVATIONS=20000,TIME=6,FAULTS=kill+pause \
	real-programs:PARTS=trees+sqlite \
	conformance:OPERATIONS=5000
E2E_LONG := balance conformance crossed cut-off disjoint-writers failover grown handed-over kill9 limits make-run partition real-programs rename-storm two-mounts \
	stale-hunter stale-primary

.PHONY: help
help: ## This list
	@echo 'PolvoFS: one POSIX file system out of the memory of many machines.'
	@echo
	@sed -nE 's/^([a-z0-9-]+):[^#]*## (.*)$$/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|' 2>/dev/null \
		|| sed -nE 's/^([a-z0-9-]+):[^#]*## (.*)$$/  make \1    \2/p' $(MAKEFILE_LIST)

.PHONY: run
run: build ## Build, start three nodes with a pool each, mount them at ./mnt (installs what is missing)
	@"$(POLVO)" up --nodes 3 --dir .polvo --mount ./mnt
	@echo
	@echo 'The program is $(POLVO)'
	@echo 'Stop it and remove everything again with: make stop'

.PHONY: stop
stop: ## Stop what `make run` has started; removes ./mnt, ./.polvo and the pools
	@if [[ ! -e .polvo ]]; then echo 'Nothing is running (no ./.polvo).'; exit 0; fi; \
	if [[ ! -x "$(POLVO)" ]]; then $(MAKE) --no-print-directory build; fi; \
	"$(POLVO)" down --dir .polvo

.PHONY: build
build: ## Build polvo, polvod and mount.polvo (release)
	@scripts/deps build
	@cargo build --release -p polvo-cli
	@for name in polvod mount.polvo; do ln -sfn polvo "$(BIN)/$$name"; done

# Each program is optimized as a whole, for minutes: who needs another one builds it, with `polvo`, so that libraries keep their features.
.PHONY: bench-program
bench-program: build ## Build polvo-bench, too, which `polvo bench` hands over to
	@cargo build --release -p polvo-cli -p polvo-bench

.PHONY: install
install: bench-program ## Install programs, manual pages, completions and the systemd unit to $(DESTDIR)/usr/local (PREFIX=/usr)
	@scripts/install "$(BIN)" "$(DESTDIR)"

.PHONY: deb
deb: bench-program ## A Debian package of what `make install` installs, target/debian/polvofs_*.deb
	@rm -rf packaging/staged
	@PREFIX=/usr scripts/install "$(BIN)" "$(CURDIR)/packaging/staged" >/dev/null
	@"$$(scripts/tool cargo-deb 3.8.0)" deb --no-build --strip --locked -p polvo-cli
	@rm -rf packaging/staged

# All tests are built once, with the bugs that can be planted (`make check`: in the dev profile): what is optimized by how much is in Cargo.toml.
PLANTED := --workspace --features polvo-client/planted,polvo-sim/planted
TESTED := --profile sim $(PLANTED)

.PHONY: lint
lint: ## Formatting, clippy without warnings, shellcheck
	@scripts/deps lint
	cargo fmt --all --check
	@# in the profile of tests, so that macros and build scripts are built once
	cargo clippy $(TESTED),polvo-bench/two-phase --all-targets -- -D warnings
	@if cargo tree --quiet --locked --edges normal,features --invert polvo-node | grep -E 'feature "(testing|planted|two-phase)"'; then \
		echo 'a plain cargo build would ship hooks for tests, or what is there for comparison'; exit 1; fi
	{ grep -lsZE '^#!.*bash$$' scripts/* .ci/run tests/e2e/* tests/vm/* || true; } | xargs -0 -n 8 -P "$$(nproc)" shellcheck -x -P SCRIPTDIR -e SC2001,SC2012
	@for script in $$(grep -lE '^#!.*busybox sh$$' tests/vm/*); do sh -n "$$script"; done

.PHONY: policy
policy: ## Dependencies: none unused, their licences and sources, known faults (deny.toml; OFFLINE=1 without the last)
	@"$$(scripts/tool cargo-machete 0.9.2)"
	@"$$(scripts/tool cargo-deny 0.20.2)" --locked --workspace check licenses bans sources $(if $(OFFLINE),,advisories)

.PHONY: check
check: ## In minutes, for every edit: lint, unit tests, 100 simulated clusters, three mounts (built incrementally, not optimized)
	@scripts/deps test
	@$(MAKE) --no-print-directory lint TESTED="$(PLANTED)"
	cargo test $(PLANTED) --lib --test commands --test seeds --no-run
	cargo test $(PLANTED) --lib --quiet
	@"$(TARGET)/debug/polvo-sim" --seeds 100 --from $$(scripts/first-seed)
	@POLVO="$(TARGET)/debug/polvo" scripts/e2e three-mounts

# Their clock is simulated, or they need none: it does not matter to them what else runs.
TIMELESS := polvo-consensus polvo-node polvo-region polvo-sim
# Of all tests those of these packages ($(call tests_of,in)), or the others ($(call tests_of,out)).
tests_of = $(TESTED) --config 'target."cfg(all())".runner=["$(CURDIR)/scripts/tests-of","$(1)","$(TIMELESS)"]' --lib --bins --tests --examples

.PHONY: test
test: lint ## Everything that has to pass: lint, unit and property tests, power cuts, simulation, fuzzing, end to end
	cargo test $(TESTED) --lib --bins --tests --examples --no-run
	@# what only needs CPUs gets what the others leave, which wait, or compile with one
	@scripts/beside "$(TARGET)/simulated.txt" '$(MAKE) --no-print-directory simulated' $(MAKE) --no-print-directory in-real-time

.PHONY: simulated
simulated:
	cargo test $(call tests_of,in)
	@$(MAKE) --no-print-directory sim SEEDS=1000 FROM=$$(scripts/first-seed)

.PHONY: in-real-time
in-real-time:
	cargo test $(call tests_of,out)
	cargo test $(TESTED) --doc
	@# for two seconds each: to optimize takes longer than it saves, and memory is looked at by `make fuzz` and `make sanitize`
	@CARGO_PROFILE_RELEASE_OPT_LEVEL=0 SANITIZER=none $(MAKE) --no-print-directory fuzz FUZZ_SECONDS=2 WITHOUT=configuration
	@scripts/deps build
	cargo build --release -p polvo-cli -p polvo-testbed
	@# lint has seen the hooks for tests used: this build has none
	@if cargo build --release -p polvo-cli -p polvo-testbed 2>&1 | grep -A 8 '^warning'; then echo 'the build warns'; exit 1; fi
	@scripts/beside "$(TARGET)/instructions.txt" '$(MAKE) --no-print-directory instructions' $(MAKE) --no-print-directory e2e JOBS=2

.PHONY: power-cuts
power-cuts: ## Power cuts at every fence of all short sequences of operations, and planted bugs (ROUNDS=n for more)
	cargo test $(TESTED) --test planted --test sequences --test kernel --test repeats --test replication --test seeds --test tokens

.PHONY: sim
SEEDS ?= 20000
FROM ?= 0
sim: ## Simulate whole clusters under faults (SEEDS=20000 FROM=0; see docs/testing.md)
	@# with the features that its tests have, so that `make power-cuts` has built it
	cargo test --quiet $(TESTED) --test seeds --no-run
	@"$(TARGET)/sim/polvo-sim" --seeds $(SEEDS) --from $(FROM) $(SIM_ARGS)

.PHONY: e2e
JOBS ?= 1
e2e: build ## The end-to-end tests alone, short (RUN="kill9:ROUNDS=50" for some of them; JOBS=2 for two at once)
	@scripts/deps test
	@POLVO="$(POLVO)" JOBS=$(JOBS) scripts/e2e $(if $(RUN),$(RUN),$(E2E))

.PHONY: e2e-long
e2e-long: ## The end-to-end tests that take long: conformance and kill -9 in full, a fresh clone
	@$(MAKE) --no-print-directory e2e RUN="$(E2E_LONG)"

.PHONY: failover
failover: build ## Nodes are killed and stopped under a load, and others take their place: no operation fails or is lost (ROUNDS=3)
	@scripts/deps test
	@POLVO="$(POLVO)" tests/e2e/failover

.PHONY: miri
miri: ## Interpret unit tests of the media side, looking for undefined behaviour (RUN=polvo-pmem; installs nightly Rust)
	@scripts/deps miri
	@scripts/miri $(RUN)

.PHONY: sanitize
sanitize: ## Run the tests of pmem and fabric under the address and the thread sanitizer (RUN=address for one of them)
	@scripts/deps sanitize
	@scripts/sanitize $(RUN)

FUZZ_SECONDS := 60
.PHONY: fuzz
fuzz: ## Fuzz every decoder, FUZZ_SECONDS each (default 60), on the corpus of fuzz/corpus first
	@scripts/deps test
	@SECONDS_EACH=$(FUZZ_SECONDS) WITHOUT="$(WITHOUT)" scripts/fuzz $(RUN)

.PHONY: bench
bench: ## Measure against memory, tmpfs and raw sockets; writes target/bench/report.{json,md} (QUICK=1 for a look, GLUSTERFS=1)
	@scripts/deps build
	cargo build --release --quiet -p polvo-bench --features two-phase
	$(if $(GLUSTERFS),$(WITH_GLUSTERFS) )"$(BIN)/polvo-bench" --report "$(TARGET)/bench/report.json" $(if $(QUICK),--quick) \
		$(if $(GLUSTERFS),$(COMPARED) $(if $(BENCH_ARGS),,all)) $(BENCH_ARGS)

GLUSTERFS_AT := /dev/shm/polvo-glusterfs
WITH_GLUSTERFS := scripts/with-glusterfs $(GLUSTERFS_AT)
COMPARED := --compare $(GLUSTERFS_AT)/glusterfs --compare $(GLUSTERFS_AT)/glusterfs-coherent
.PHONY: bench-compare
bench-compare: bench-program ## Measure our mounts beside GlusterFS and nothing else; writes target/bench/compare.{json,md} (root; installs it)
	$(WITH_GLUSTERFS) "$(BIN)/polvo-bench" $(COMPARED) --report "$(TARGET)/bench/compare.json" $(if $(QUICK),--quick)

.PHONY: performance-doc
performance-doc: ## Write docs/performance.md from the report of the last `make bench`, which must be of a commit
	cargo run --release --quiet -p polvo-bench --features two-phase -- --report "$(TARGET)/bench/report.json" --doc docs/performance.md

.PHONY: instructions
instructions: ## Count the instructions of the hottest operations; fails when they are 3 % above docs/instructions.tsv
	@scripts/deps test
	@scripts/instructions $(RUN)

.PHONY: test-vm
test-vm: build ## Persistent memory in a virtual machine: /dev/dax and a DAX file system, kill -9, reset; a node's reset (needs QEMU)
	tests/vm/run
	@POLVO="$(POLVO)" tests/vm/machine-reset

.PHONY: clean
clean: stop ## Stop, and remove everything that was built
	cargo clean
