# Two commands on a fresh machine: `make demo` shows a real run, `make test` runs the whole suite.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: demo demo-rates test lint bench docs install browser clean

# The stamp makes a second install free; it is renewed when the project's requirements change.
$(VENV)/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

install: $(VENV)/installed

demo: install
	$(BIN)/fedmime compare --config examples/demo.yaml --out runs/demo

# Where the rates in examples/demo.yaml come from: each method's own sweep in the demo's setting.
demo-rates: install
	for method in fedavg mime_lite mime; do \
	  $(BIN)/fedmime sweep --task handwriting-logistic --algorithm $$method --rounds 300 --cohort 10 --epochs 10 \
	    --evaluate-every 5 --light --halving --out runs/demo-rates/$$method || exit 1; \
	done

# One test opens a report in Chromium; it is left out where the browser is missing and cannot be installed.
browser:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  (apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y chromium) >/dev/null 2>&1; } || true

# Two processes; neighbouring tests share fixtures and programs, so each process gets half of them in a row.
SHARED := --numprocesses 2 --dist worksteal
test: install lint browser
	$(BIN)/python -m pytest --quiet $(SHARED)
	XLA_FLAGS= FEDMIME_NATIVE=0 $(BIN)/python -m pytest --quiet $(SHARED) tests/engine/test_exactness.py -k "plain_loop and not factors and (mlp-fedavg or mlp-mime_mvr or cnn-fedavg)"

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: install
	$(BIN)/python -m benchmarks $(BENCH)

docs: install
	$(PIP) install --quiet --constraint constraints.txt --editable '.[docs]'
	$(BIN)/python -m sphinx -q -W docs docs/_build

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
