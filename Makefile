# Every target sets up its own virtual environment first; the second time that takes no time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS := .venv-docs
SITE := "mkdocs-material>=9.8,<10" "mkdocstrings[python]>=1.0,<2" "mkdocs>=1.6,<2"
# Tests are many small programs, and most of their time is compiling. With these flags they take less than half as long.
TEST_FLAGS := --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false \
  --xla_cpu_parallel_codegen_split_count=1

.PHONY: demo test test-slow lint types deps pytest bench docs clean

demo: $(STAMP)
	$(BIN)/parvi demo

test: lint types deps pytest

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

deps: $(STAMP)
	$(BIN)/python -m pip check

pytest: $(STAMP)
	XLA_FLAGS="$(TEST_FLAGS)" $(BIN)/pytest -m "not slow" -n 2 --dist loadgroup \
	  --no-loadscope-reorder

test-slow: $(STAMP)
	$(BIN)/pytest -m slow -n 2 --dist loadgroup

bench: $(STAMP)
	$(BIN)/python -m pip install --quiet --editable ".[bench]"
	$(BIN)/python -m benchmarks

# The site is built from sources, without JAX, in an environment of its own.
docs: $(DOCS)/.installed
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet
	@echo "Site: site/index.html"

$(DOCS)/.installed: pyproject.toml
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --upgrade pip
	$(DOCS)/bin/python -m pip install --quiet $(SITE)
	touch $@

clean:
	rm -rf $(VENV) $(DOCS) site

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "parvi needs Python 3.11 or newer; call make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[data,demo,dev]"
	touch $@
