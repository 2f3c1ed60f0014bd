# `make demo` and `make test` do all their set-up by themselves; each says every step as it goes.

SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
SAY := @printf '\n── %s\n'
NODE_MODULES := node_modules
# Processes that the tests run in: more than two cores need, for many tests wait. Files in their order: those with a
# browser are few and slow, and come first.
WORKERS ?= 4

# The first of these that runs; name another by `make PYTHON=...`.
PYTHON ?= $(shell for p in python3.11 python3; do $$p -c '' 2>/dev/null && echo $$p && break; done)

.DEFAULT_GOAL := help
.PHONY: help quick demo test test-all test-torch test-lowest lint bench faults gpu gpu-carry soak mutants screenshots docs docs-links clean system-packages javascript-tools

help:
	@echo 'make quick   in about a minute: lint of what has changed, and every test that starts no process'
	@echo 'make demo    play the first-steps notebook in this terminal, on four CPU ranks'
	@echo 'make test    every check that CI runs for a change: lint, types, import contracts, tests'
	@echo 'make test-all   the same, and what is told elsewhere, too: CI runs it each night'
	@echo 'make lint    all of them but the tests'
	@echo 'make test-torch TORCH=2.15.0   the built wheel with another torch, in an environment of its own (gigabytes, unless pip'
	@echo '             finds the CPU build; not a part of make test). PYTHON=python3.13 names its Python, SUITES="world comm" some suites'
	@echo 'make test-lowest   the same with the oldest torch that nbcomm allows, and the lowest version of everything else'
	@echo 'make bench   the speed table'
	@echo 'make faults  break a world in every way of docs/reliability.md, and write its rows'
	@echo 'make gpu     what only a GPU can show, in at most eight minutes; its steps that need none run without one'
	@echo 'make gpu-carry   what a machine without a network needs for that, in build/gpu'
	@echo 'make soak    one world through 500 random cells with random faults, checked after each'
	@echo 'make mutants change the pure modules a little at a time: which changes does no test notice? Not a part of make test.'
	@echo '             MODULE=nbcomm/rank_spec.py names one of them'
	@echo 'make screenshots   take the pictures of docs/ anew, in a real browser'
	@echo 'make docs    the site of docs/ and the other pages, in build/docs; a warning is an error, and make test builds it, too'
	@echo 'make docs-links   do links to other sites lead somewhere? It asks them, and is not a part of make test'
	@echo 'make clean   remove the environment, caches and builds'

demo: $(VENV)/ready-to-run
	$(SAY) 'Playing notebooks/01_first_steps.ipynb on four ranks.'
	@$(BIN)/nbcomm demo

# Containers often set PYTHONDONTWRITEBYTECODE; then each of hundreds of kernels and fork servers would compile nbcomm.
PYTEST = env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder

# It needs the environment, and nothing of the system. mypy remembers what it knows of files that have not changed.
quick: $(VENV)/ready-to-develop
	$(SAY) 'Linting, and checking what differs from the main branch.'
	@$(BIN)/ruff check --quiet . && $(BIN)/ruff format --quiet --check .
	@base=$$(git merge-base HEAD origin/main 2>/dev/null || git merge-base HEAD main 2>/dev/null || echo HEAD); \
	changed=$$({ git diff --name-only --diff-filter=d $$base; git ls-files --others --exclude-standard; } 2>/dev/null); \
	web=$$(grep -E '^(nbcomm|tests)/.*\.(js|mjs|css)$$' <<<"$$changed"); \
	if grep -qE '^(nbcomm/.*\.py|pyproject\.toml)$$' <<<"$$changed"; then \
	  $(BIN)/mypy && $(BIN)/lint-imports --no-logo || exit 1; \
	else echo 'No Python file of nbcomm differs: types and imports are not checked.'; fi; \
	if [ -z "$$web" ]; then :; elif [ -x $(NODE_MODULES)/.bin/biome ]; then \
	  $(NODE_MODULES)/.bin/biome check --error-on-warnings --no-errors-on-unmatched $$web || exit 1; \
	else echo 'JavaScript or CSS differs, and is not checked: `make javascript-tools` installs biome.'; fi
	$(SAY) 'Running the tests that start no process; laws with few of their examples.'
	@$(PYTEST) -q -m unit -n 2 --hypothesis-profile=quick

test: lint system-packages
	$(SAY) 'Running the tests, but those that are told elsewhere, too; the slowest are named at the end.'
	@$(PYTEST) -n $(WORKERS) --durations=25 -m 'not nightly' --hypothesis-profile=day

test-all: lint system-packages
	$(SAY) 'Running all tests; the slowest are named at the end.'
	@$(PYTEST) -n $(WORKERS) --durations=25

# docs/versions.md tells what these do, and has their results; WRITE=docs/versions.md puts the row there.
test-torch: $(VENV)/ready-to-run
	@[ -n '$(TORCH)' ] || { echo 'Which torch? Name one by: make test-torch TORCH=2.15.0' >&2; exit 1; }
	$(SAY) 'Testing the built wheel with torch $(TORCH) on $(PYTHON).'
	@$(BIN)/python -m tests.versions --torch '$(TORCH)' --python '$(PYTHON)' --workers $(WORKERS) \
	  $(if $(LOWEST),--lowest) $(if $(FRESH),--fresh) \
	  $(if $(SUITES),--suites '$(SUITES)') $(if $(INTO),--into '$(INTO)') $(if $(WRITE),--write '$(WRITE)')

test-lowest:
	@$(MAKE) --no-print-directory test-torch TORCH=oldest LOWEST=1

lint: $(VENV)/ready-to-develop javascript-tools
	$(SAY) 'Linting.'
	@$(BIN)/ruff check .
	$(SAY) 'Checking the format.'
	@$(BIN)/ruff format --check .
	$(SAY) 'Checking the types.'
	@$(BIN)/mypy
	$(SAY) 'Checking the import contracts: which side may import which.'
	@$(BIN)/lint-imports --no-logo
	$(SAY) "Linting the panel's JavaScript and checking its format."
	@npm run --silent lint
	$(SAY) "Checking the JavaScript's types."
	@npm run --silent types

bench: $(VENV)/ready-to-run
	$(SAY) 'Measuring; a quiet machine gives the truest ratios.'
	@$(BIN)/python -m bench

faults: $(VENV)/ready-to-develop
	$(SAY) 'Breaking a world in every way of docs/reliability.md.'
	@$(BIN)/python -m tests.world.faults --write docs/reliability.md

gpu: $(VENV)/ready-to-run
	$(SAY) 'Trying on a GPU what no other machine can show; the table goes to gpu-evidence.txt.'
	@$(BIN)/python -m tests.gpu

gpu-carry: $(VENV)/ready-to-run
	$(SAY) 'Collecting what a machine without a network needs for make gpu, in build/gpu; PYTHON_THERE=3.13 is its version.'
	@$(BIN)/python -m tests.gpu.carry --python $(or $(PYTHON_THERE),3.12)

soak: $(VENV)/ready-to-develop
	$(SAY) 'Soaking a world in random cells and faults; a seed that fails can be replayed.'
	@$(BIN)/python -m tests.world.soak

# tests/mutants/__main__.py tells what it does; ONLY=--unnoticed tries again what no test noticed the last time.
mutants: $(VENV)/ready-to-develop
	$(SAY) 'Changing the pure modules a little at a time; what no test notices is told at the end.'
	@$(BIN)/python tests/mutants $(MODULE) --children $(WORKERS) $(ONLY)

screenshots: $(VENV)/ready-to-develop system-packages
	$(SAY) 'Taking the pictures of docs/ in a real JupyterLab, light and dark.'
	@NBCOMM_SCREENSHOTS=docs $(BIN)/python -m pytest -q tests/browser/test_world.py tests/browser/test_story.py tests/browser/test_views.py tests/browser/test_widgets.py
	$(SAY) 'Drawing the pictures of docs/collectives.'
	@$(BIN)/python docs/pictures.py
	$(SAY) 'Playing the notebooks for docs/notebooks.'
	@$(BIN)/python docs/notebooks.py

# Anew each time: Sphinx keeps quiet about a page that it has read before.
SITE = $(BIN)/python -m sphinx --quiet --fresh-env --fail-on-warning -c docs -d build/docs-read

docs: $(VENV)/ready-to-develop
	$(SAY) 'Building the site of the pages.'
	@rm -rf build/docs
	@$(SITE) -b html . build/docs
	@echo 'It begins with build/docs/index.html, and needs no server and no network.'

docs-links: $(VENV)/ready-to-develop
	$(SAY) 'Asking for each link of the pages that leads to another site.'
	@$(SITE) -b linkcheck . build/docs-links

clean:
	$(SAY) 'Removing the environment, caches and builds.'
	@rm -rf $(VENV) $(NODE_MODULES) build dist mutants .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ── the environment: brought up to date when what it is made from has changed ──

$(BIN)/python:
	@[ -n '$(PYTHON)' ] || { echo 'There is no Python here: install Python 3.10 or newer, 3.11 is best.' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo '$(PYTHON) is too old or does not run: nbcomm needs Python 3.10 or newer. Name one by: make PYTHON=python3.11' >&2; exit 1; }
	$(SAY) "Making an environment in $(VENV) with $$($(PYTHON) --version)."
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo 'This Python cannot make environments: on Debian and Ubuntu, install python3-venv and run make again.' >&2; exit 1; }

$(VENV)/ready-to-run: pyproject.toml constraints.txt | $(BIN)/python
	$(SAY) 'Installing nbcomm and what it needs; torch is large, so the first time takes minutes.'
	@$(PIP) --editable .
	@touch $@

$(VENV)/ready-to-develop: pyproject.toml constraints.txt | $(BIN)/python
	$(SAY) 'Installing nbcomm, what it needs, and the tools of development; the first time takes minutes.'
	@$(PIP) --editable '.[dev,docs]'
	@touch $(VENV)/ready-to-run $@

# biome and tsc lint and type-check the panel's JavaScript, and axe judges what it draws in the browser tests. A
# stamp tells which lock file they were installed from; `npm ci` takes exactly what that file names.
javascript-tools: system-packages
	@command -v node >/dev/null && command -v npm >/dev/null || { \
	  echo "There is no Node.js with npm here: the panel's JavaScript cannot be linted or type-checked without them." >&2; \
	  echo 'As root, run: apt-get install nodejs npm' >&2; exit 1; }
	@$(MAKE) --silent --no-print-directory $(NODE_MODULES)/ready

$(NODE_MODULES)/ready: package.json package-lock.json
	$(SAY) "Installing biome, TypeScript and axe, which check the panel's JavaScript."
	@npm ci --silent --no-audit --no-fund || { \
	  echo 'npm could not install them: is its registry within reach? The Python checks do not need them.' >&2; exit 1; }
	@touch $@

# The tests in a browser need one, with a font to draw; the checks and tests of the panel's JavaScript need Node.js.
# Worlds on several machines are tested on fake hosts, which only root can make: with sshd, Slurm, Open MPI, and tools
# for namespaces. The policy keeps the installation from starting these services for everybody.
system-packages:
	@missing=; \
	command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || missing="$$missing chromium"; \
	command -v node >/dev/null || missing="$$missing nodejs"; \
	command -v npm >/dev/null || missing="$$missing npm"; \
	[ "$$(id -u)" != 0 ] || [ -x /usr/sbin/sshd ] || missing="$$missing openssh-server"; \
	[ "$$(id -u)" != 0 ] || command -v ssh >/dev/null || missing="$$missing openssh-client"; \
	[ "$$(id -u)" != 0 ] || command -v ip >/dev/null || missing="$$missing iproute2"; \
	[ "$$(id -u)" != 0 ] || command -v mpiexec >/dev/null || missing="$$missing openmpi-bin"; \
	[ "$$(id -u)" != 0 ] || [ -x /usr/sbin/slurmctld ] || missing="$$missing slurmctld"; \
	[ "$$(id -u)" != 0 ] || [ -x /usr/sbin/slurmd ] || missing="$$missing slurmd"; \
	[ "$$(id -u)" != 0 ] || command -v srun >/dev/null || missing="$$missing slurm-client"; \
	[ "$$(id -u)" != 0 ] || [ -x /usr/sbin/munged ] || missing="$$missing munge"; \
	[ -n "$$(find /usr/share/fonts -name 'DejaVuSans*' -print -quit 2>/dev/null)" ] || missing="$$missing fonts-dejavu-core"; \
	[ -z "$$missing" ] && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  printf '\n── Installing what tests and checks need:%s.\n' "$$missing"; \
	  policy=/usr/sbin/policy-rc.d; [ -e $$policy ] && policy= || { printf '#!/bin/sh\nexit 101\n' >$$policy; chmod +x $$policy; }; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	  code=$$?; [ -z "$$policy" ] || rm -f $$policy; exit $$code; \
	else \
	  printf '\n── Missing:%s. Not all can be checked and tested without them; as root, run: apt-get install%s\n' "$$missing" "$$missing"; \
	fi
