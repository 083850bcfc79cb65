# Two commands on a fresh machine: `make demo` shows a real run, `make test` runs the whole suite.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: demo demo-rates test test-shared test-plain test-processes test-slow torch test-deploy test-versions lint bench docs install browser clean

# Stamps make a second install free; they are renewed when the project's requirements change. The demo needs no
# developers' tools. Pip never removes an extra, and the full install is one for the demo, too.
$(VENV)/installed-demo: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt --editable '.[plot]'
	touch $@

$(VENV)/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(VENV)/installed-demo $@

install: $(VENV)/installed

# PyTorch for the clients that are written in it. It belongs to no extra: without --no-deps, the builds that most indexes
# offer would bring a gigabyte of CUDA with them. Whoever has an index of builds for the CPU gives it to pip.
TORCH := torch setuptools filelock typing-extensions sympy networkx jinja2 fsspec mpmath MarkupSafe
$(VENV)/installed-torch: constraints.txt | $(VENV)/installed
	$(PIP) install --quiet --no-deps --constraint constraints.txt $(TORCH)
	touch $@

torch: $(VENV)/installed-torch

demo: $(VENV)/installed-demo
	$(BIN)/fedmime compare --config examples/demo.yaml --out runs/demo/two-labels
	$(BIN)/fedmime compare --config examples/demo-annotators.yaml --out runs/demo/annotators
	$(BIN)/fedmime report runs/demo/two-labels runs/demo/annotators --title "What Mime is for" --out runs/demo/report.html

# Where the rates in examples/demo*.yaml come from: every method at every rate, as many seeds and rounds as in the demo.
demo-rates: $(VENV)/installed-demo
	$(BIN)/fedmime compare --config examples/demo.yaml --rates 0.316 0.562 1 1.78 3.16 5.62 10 17.8 31.6
	$(BIN)/fedmime compare --config examples/demo-annotators.yaml --rates 0.00316 0.01 0.0316 0.1 0.316 1 3.16 10 31.6 100

# One test opens a report in Chromium; it is left out where the browser is missing and cannot be installed.
browser:
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  (apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y chromium) >/dev/null 2>&1; } || true

# Two processes; neighbouring tests share fixtures and programs, so each process gets half of them in a row. The tests of
# the Ray back end share one Ray, and Flower's start processes of their own. Both mostly wait, so they run beside the rest.
SHARED := --numprocesses 2 --dist worksteal
RAY := tests/engine/backends/ray/running tests/experiments/test_sweep_ray.py
FLOWER := tests/deploy/flower
test: install browser
	$(MAKE) --no-print-directory --jobs 2 test-shared lint test-plain test-processes

test-shared: install
	$(BIN)/python -m pytest --quiet $(SHARED) $(addprefix --ignore ,$(RAY) $(FLOWER))

test-processes: install
	$(BIN)/python -m pytest --quiet $(RAY)
	$(BIN)/python -m pytest --quiet $(FLOWER)

# The engine against the plain loop as it is where the kernels cannot be compiled, with programs optimized as for users.
test-plain: install
	XLA_FLAGS= FEDMIME_NATIVE=0 $(BIN)/python -m pytest --quiet tests/engine/backends/test_reference.py -k "models_and and (mlp-fedavg or mlp-mime_mvr or cnn-fedavg)"

# What `make test` shows by a covering part is shown in full: every algorithm × base × mode, all kills and messages.
test-slow: install
	$(BIN)/python -m pytest --quiet -m slow $(SHARED) $(addprefix --ignore ,tests/deploy $(RAY))
	$(BIN)/python -m pytest --quiet -m slow $(RAY)

# Every process that tests start reads the same compiled modules, also where Python is told to write none.
test test-shared test-plain test-processes test-slow test-deploy: export PYTHONDONTWRITEBYTECODE :=

# Real deployments: five nodes, masked sums, faults, clients in PyTorch, two network namespaces (which take root).
# About half an hour on two cores.
test-deploy: install torch
	$(BIN)/python -m pytest --quiet -m slow tests/deploy tests/faults/test_deploy_fuzz.py

# The wheel with the newest packages on the index, whatever constraints.txt says, under each of these interpreters. XLA's
# flags that the tests set are not known to every version.
PYTHONS ?= python3.11 python3.12 python3.13
CHECKED := tests/test_vector.py tests/test_hyperparameters.py tests/runs tests/engine/test_simulate.py \
  tests/identities/test_reductions.py
test-versions:
	rm -rf build/versions && mkdir -p build/versions
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir build/versions .
	for python in $(PYTHONS); do \
	  home=build/versions/$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	  $$python -m venv $$home && \
	  $$home/bin/python -m pip install --quiet build/versions/*.whl pytest pytest-timeout hypothesis matplotlib && \
	  $$home/bin/python -c 'import sys, fedmime, jax, numpy; print(sys.version.split()[0], "JAX", jax.__version__, "NumPy", numpy.__version__, fedmime.__file__)' && \
	  XLA_FLAGS= $$home/bin/python -m pytest --quiet $(CHECKED) && \
	  XLA_FLAGS= $$home/bin/python -m pytest --quiet tests/test_documents.py -k README || exit 1; \
	done

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
