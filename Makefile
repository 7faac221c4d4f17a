# Two commands for users: `make demo` and `make test`. Each installs what it needs and shows the steps of pip; a second
# call installs nothing.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SUITE  := -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder
PYTEST := $(BIN)/python $(SUITE)

.PHONY: demo test test-slow lint coverage parity reproduce bench bench-peers clean

demo: $(VENV)/.runs
	$(BIN)/fedaccord demo

test: $(VENV)/.tests lint
	$(PYTEST) -m "not slow"

# Slow tests: deployments with faults, killed and long runs, tables of papers, the wheel. Continuous integration runs both targets.
test-slow: $(VENV)/.tests
	$(PYTEST) -m slow

lint: $(VENV)/.tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy

# Branch coverage of src by `make test`, worker processes included; fails below 90 %.
coverage: $(VENV)/.tests
	$(BIN)/coverage erase
	$(BIN)/coverage run $(SUITE) -m "not slow" --override-ini timeout=900
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

parity: $(VENV)/.tests
	$(BIN)/python tests/engines/flower/all_recipes.py

# Tables of papers: make reproduce TABLE=fedmt ARGS="--quick --data DIR"; without TABLE, their list.
reproduce: $(VENV)/.runs
	$(BIN)/python -m papers $(TABLE) $(ARGS)

bench: $(VENV)/.tests
	$(BIN)/python benchmarks/engine.py --rounds 15

# Other frameworks, each in an environment of its own (about 6 GB in all), and FedAccord on the same work.
PEERS      ?= .peers
PEER_NAMES := pfl fedlab fluke flower

bench-peers: $(VENV)/.tests $(PEER_NAMES:%=$(PEERS)/%/.made)
	$(BIN)/python benchmarks/peers/run.py --environments $(PEERS) --out benchmarks/results/peers.md

# torch goes first, so that nothing pulls in another build of it.
$(PEERS)/%/.made: benchmarks/peers/requirements/%.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check 'torch>=2.6,<2.14' numpy
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check 'torch>=2.6,<2.14' -r $<
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("FedAccord needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runs: pyproject.toml | $(BIN)/python
	$(BIN)/python tools/install.py --editable .
	@touch $@

$(VENV)/.tests: pyproject.toml | $(BIN)/python
	$(BIN)/python tools/install.py --editable '.[dev]'
	@touch $@ $(VENV)/.runs

clean:
	rm -rf $(VENV) $(PEERS) .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.*
