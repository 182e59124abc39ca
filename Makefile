# The front door. `make` alone prints what there is.
.DEFAULT_GOAL := help
.PHONY: help setup wheel deb test-packages setup-apps setup-podman setup-simgrid demo test test-all test-measured test-needs test-guest test-xen test-cloud test-moves test-hosts test-stopped test-tiles test-engine test-properties test-mutants lint docs example-reports page-picture bench bench-service bench-sites clean

help: ## show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install what is missing, build, find a CRIU that works (quick when nothing changed)
	@scripts/setup

setup-apps: ## install LAMMPS, GROMACS and other applications (1.5 GiB), which studies and tests run when they are there
	@scripts/setup-apps

setup-podman: ## install podman, beside which `wherry bench run engine` measures a move
	@scripts/setup-podman

setup-simgrid: setup ## install SimGrid, in which `wherry bench run collectives-simulated` runs collectives of many ranks
	@scripts/setup-simgrid

setup-vm: setup ## install libvirt and QEMU, for nodes of kind vm
	@scripts/setup-vm

demo: ## HPL natively, on a virtual cluster, and with a live move; writes report.html
	@scripts/setup "then the demo runs (about 6 minutes on two idle cores)"
	@scripts/as-root .venv/bin/wherry demo

test: setup test-needs ## what a change must pass: lint, unit tests, native programs, once through what Wherry does
	@scripts/test

test-all: setup test-needs ## everything that this machine can run, with sanitizers, fuzzing and coverage (an hour); PART=vm one part of it, PART=auto those that a change touches
	@scripts/test all $(PART) $(if $(SINCE),--since $(SINCE))

test-measured: setup test-needs ## the tests that compare times, on a quiet machine
	@scripts/test measured

test-needs: setup # what tests need; what cannot be had is said, and skipped
	@scripts/setup-vm || echo "test: no virtual machines here (see above); what needs them is skipped" >&2
	@scripts/setup-test || echo "test: no clang, no sshd, no PostgreSQL or no browser here (see above); what needs them is skipped" >&2

test-guest: ## container nodes on Debian's own kernel, in a virtual machine (hours without KVM)
	@scripts/test-guest

test-xen: setup-vm ## a live move between two emulated Xen hosts (ten minutes, four more the first time)
	@scripts/as-root scripts/test-xen

test-cloud: setup ## nodes that boot a whole Debian with cloud-init from a disk (a quarter of an hour without KVM)
	@scripts/setup-vm
	@scripts/test-cloud

test-moves: setup-vm ## twenty moves of a virtual machine, for each adapter, hybrid that switches, post-copy that breaks (a quarter of an hour without KVM)
	@scripts/as-root env WHERRY_LONG_TESTS=1 .venv/bin/python -m pytest -q -rsP -p no:cacheprovider tests/system/test_vm.py -k "twenty or breaks or outruns"

test-hosts: setup ## moves between hosts by SSH that fall silent, at each step and either end; between two kernels, on three machines (half an hour without KVM)
	@scripts/setup-vm || echo "test-hosts: no QEMU here (see above); moves between two kernels are skipped" >&2
	@scripts/as-root scripts/host-images $${HOSTS_CACHE:-/var/tmp/wherry-hosts} || echo "test-hosts: no machines (see above); moves between two kernels are skipped" >&2
	@scripts/as-root env WHERRY_LONG_TESTS=1 HOSTS_CACHE=$${HOSTS_CACHE:-/var/tmp/wherry-hosts} .venv/bin/python -m pytest -q -rsP -p no:cacheprovider tests/system/test_host_failures.py tests/system/test_two_kernels.py

test-stopped: setup-vm ## tests of `make test`, and twenty moves, while daemons and helpers stand for 5 to 20 s each; SEED=N as before (an hour)
	@scripts/as-root scripts/test-stopped $(if $(SEED),--seed $(SEED))

test-tiles: setup ## ten thousand moves of a tile process under load, and the protocols of moves with many seeds (some minutes)
	@scripts/as-root env WHERRY_TILE_MOVES=10000 .venv/bin/python -m pytest -q -p no:cacheprovider tiles/tests/integration/test_manycore.py -k many_moves
	@build/native/tests/test_manycore_move_protocol 10
	@build/native/tests/test_manycore_host_moves 200 2>build/test-tiles.log || { tail -5 build/test-tiles.log >&2; exit 1; }

test-engine: setup ## container moves: every program, mode and fault, twenty moves each; NPB under moves; 200 moves of one job (an hour)
	@scripts/as-root env WHERRY_ENGINE_MOVES=20 WHERRY_PAGER_FREEZES=40 .venv/bin/python -m pytest -q -rs --timeout 1800 -p no:cacheprovider \
	  tests/contract/test_engine_matrix.py tests/contract/test_engine_faults.py tests/contract/test_objects.py tests/contract/test_file_locks.py tests/system/test_engine_jobs.py \
	  tests/integration/test_pager_send.py tests/integration/test_pager_receive.py tests/integration/test_native_fuzz.py

test-properties: setup ## the property tests with other examples each time, or those of a seed: make test-properties SEED=7
	@seed=$${SEED:-$$(date +%s)}; echo "test-properties: again with the same examples: make test-properties SEED=$$seed"; \
	  .venv/bin/python -m pytest -q -p no:cacheprovider --hypothesis-profile others --hypothesis-seed "$$seed" -m hypothesis tests/unit tiles/tests/unit

test-mutants: setup ## changes move, schedule and cluster in one place at a time: do their unit tests notice? (hours)
	@scripts/test-mutants

lint: setup ## style, types, import directions, circles, file sizes, the specification's tests
	@scripts/lint

docs: setup ## the documents as a site in build/site, its links checked
	@scripts/docs

wheel: setup ## dist/wherry-*.whl with the native programs, for pip
	@.venv/bin/python -m pip wheel -q --no-build-isolation --no-deps -w dist .

deb: setup ## dist/wherry_*.deb with all that it needs beside Debian's packages, for the release of this machine
	@scripts/deb

test-packages: setup wheel deb ## installs wheel, Debian package and container image on a bare Debian, uses and removes them (half an hour)
	@scripts/debian-packages test-packages debootstrap podman runc conmon netavark
	@scripts/as-root scripts/bare-root $${PACKAGES_CACHE:-/var/tmp/wherry-packages} $$(. /etc/os-release && echo $$VERSION_CODENAME)
	@scripts/as-root env WHERRY_LONG_TESTS=1 PACKAGES_CACHE=$${PACKAGES_CACHE:-/var/tmp/wherry-packages} .venv/bin/python -m pytest -q -rsP -p no:cacheprovider tests/system/test_packages.py

example-reports: setup ## each study with --quick; its report goes into the documents (half an hour, on a quiet machine)
	@scripts/as-root scripts/example-reports

page-picture: setup ## the web page's picture in README.md, of a real cluster in a real browser
	@scripts/setup-test && scripts/as-root scripts/page-picture

bench: setup ## what a program sees of a move, by memory size, beside runc and podman by hand
	@scripts/as-root .venv/bin/wherry bench run engine --set sizes=8MiB,64MiB,256MiB,1GiB --set files= --set links= \
	  --set contents= --set job= --out build/bench-engine.jsonl

bench-sites: setup ## links, moves over them, and balancing, beside their goals (hours, on a quiet machine)
	@for name in links link-moves balance balance-overhead; do \
	  scripts/as-root .venv/bin/wherry bench run $$name --out build/bench-$$name.jsonl || exit; done

bench-service: setup ## 200 clients at one daemon with a history of 10,000 clusters, beside the goals (minutes, on a quiet machine)
	@scripts/as-root .venv/bin/python scripts/bench-service

kill-service: setup ## kill a daemon under load twenty times; no accepted operation may be lost (minutes)
	@scripts/as-root .venv/bin/python scripts/kill-service

clean: ## remove the virtual environment and everything built
	rm -rf .venv build dist .pytest_cache .hypothesis
