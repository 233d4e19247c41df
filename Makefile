# Every target makes its own .venv from nothing but Python. Try `make help`.
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo bench test sim check pins clean

OLD_ENOUGH := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
# The first Python that serves; `make PYTHON=/path/to/python setup` names another. A command that is there may still
# not run (version managers leave such stubs), so each is tried.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	"$$python" -c '$(OLD_ENOUGH)' >/dev/null 2>&1 && { echo "$$python"; break; }; done)
BIN := .venv/bin
STAMP := .venv/.stamp
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation
CODE := src tests simulation $(sort $(patsubst %/,%,$(dir $(wildcard demo/*.py bench/*.py))))
LOCK := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate \
	--custom-compile-command 'make pins'

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1	\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16

setup: $(STAMP) ## make .venv with everything pinned, and a Java when the machine has none
	@echo "Ready: try make demo."

demo: $(STAMP) ## kill a pipeline, flip a bit of its state, count what was lost
	@$(BIN)/python -m demo.run $(ARGS)

bench: $(STAMP) ## measure against a peer or a ceiling in the same run (SUITE=storage, pipeline or incremental)
	@$(BIN)/python -m bench.$(or $(SUITE),storage) $(ARGS)

test: $(STAMP) ## run the tests (ARGS="tests/unit -k name" picks some, JOBS=0 runs them in one process)
	@$(BIN)/python -m pytest -n $(or $(JOBS),2) --dist loadfile --no-loadscope-reorder $(ARGS)

sim: $(STAMP) ## play the protocol through crashes, zombies and damage by seed (SEEDS=1000)
	@$(BIN)/python -m simulation --seeds $(or $(SEEDS),1000) $(ARGS)

check: $(STAMP) ## lint, format and types, without changing a file
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/ruff format --check $(CODE)
	@$(BIN)/mypy $(CODE)

pins: ## renew requirements/*.txt from the .in files (needs uv; ARGS=--upgrade takes newer versions)
	@for name in build dev java; do $(LOCK) $(ARGS) requirements/$$name.in -o requirements/$$name.txt || exit; done

clean: ## remove .venv and all that tools left behind
	@rm -rf .venv build dist htmlcov .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .coverage.*
	@rm -rf src/*.egg-info spark-warehouse metastore_db derby.log
	@find src tests demo bench simulation -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(STAMP): pyproject.toml requirements/build.txt requirements/dev.txt requirements/java.txt
	@"$(PYTHON)" -c '$(OLD_ENOUGH)' 2>/dev/null || { \
		echo "Python 3.11 or later with its venv module is needed; $(if $(PYTHON),$(PYTHON) does not serve,none was found on the PATH)." >&2; \
		echo "Install one (Debian: apt install python3 python3-venv), or name it: make PYTHON=/path/to/python3 setup" >&2; \
		exit 1; }
	@echo "Setting up .venv with $$("$(PYTHON)" --version). The first time takes a minute or two."
	@"$(PYTHON)" -m venv .venv
	@$(PIP_INSTALL) --require-hashes -r requirements/build.txt
	@$(PIP_INSTALL) --require-hashes -r requirements/dev.txt
	@$(PIP_INSTALL) --no-deps --editable .
	@java=$$($(BIN)/python -m slackwater.spark.java 2>&1) || case $$? in \
		14) echo "No Java 17 or later here: adding one to .venv."; \
			$(PIP_INSTALL) --require-hashes -r requirements/java.txt && $(BIN)/python -m slackwater.spark.java >/dev/null;; \
		*) echo "$$java" >&2; false;; esac
	@touch $@
