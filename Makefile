# Two commands do everything on a bare machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Modules are compiled when they are first loaded: most of torch's never are.
QUICK_INSTALL := pip install --quiet --no-compile --constraint constraints.txt

.PHONY: demo test test-slow check coverage tables viewer docs test-baselines clean

demo: $(VENV)/.installed
	$(BIN)/vbreg demo

# Tests share the cores, so that each keeps to one of them.
test: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" \
		--numprocesses auto --maxprocesses 4 --dist worksteal

# What takes long, or needs Ray or gtsam: processes and clusters that are killed or share a training,
# kernels compiled for other GPUs, the network as ONNX, pose graphs beside those of gtsam.
test-slow: $(VENV)/.installed-dev
	$(BIN)/python -m $(QUICK_INSTALL) --editable '.[scale]' gtsam
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow

check: $(VENV)/.installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# Which lines the tests run, as a table and in htmlcov/.
coverage: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m coverage run -m pytest
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage html --quiet
	$(BIN)/python -m coverage report

# The numbers in the documents, from the CSV files in docs/results.
tables: $(VENV)/.installed-dev
	$(BIN)/python scripts/write_tables.py
	$(BIN)/python scripts/plot_results.py

# The script of `vbreg view` and of reports, from viewer/ with npm.
viewer:
	cd viewer && npm ci --no-audit --no-fund && npm run build

# The documentation site, in out/site; a warning is an error.
docs: $(VENV)/.installed-dev
	$(BIN)/python -m sphinx --builder html --nitpicky --fail-on-warning --keep-going docs out/site

# Tests against Open3D, in an environment of their own: the core is tested without it.
test-baselines: .venv-baselines/.installed
	.venv-baselines/bin/python -c "import open3d"
	OMP_NUM_THREADS=1 .venv-baselines/bin/python -m pytest -m baselines

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m $(QUICK_INSTALL) --editable '.[dev,io,mesh,ros,plots,train,browser,docs,onnx]'
	touch $@ $(VENV)/.installed

# It begins with what the other environment has, so that torch is not installed twice.
SITE := import sysconfig; print(sysconfig.get_path("purelib"))
.venv-baselines/.installed: $(VENV)/.installed-dev
	$(PYTHON) -m venv .venv-baselines
	echo "import site; site.addsitedir('$$($(BIN)/python -c '$(SITE)')')" \
		> "$$(.venv-baselines/bin/python -c '$(SITE)')/other_environment.pth"
	.venv-baselines/bin/python -m $(QUICK_INSTALL) --editable '.[baselines]'
	touch $@

clean:
	rm -rf $(VENV) .venv-baselines build dist out htmlcov .coverage* viewer/node_modules
