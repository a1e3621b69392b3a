# Every target sets up .venv by itself, once: see scripts/bootstrap.py.
PYTHON ?= python3
RUN = $(PYTHON) scripts/bootstrap.py --extra dev
TEST = -m pytest -n auto --dist worksteal
ARGS =

.DEFAULT_GOAL := help
.PHONY: help test test-all lint format bench clean

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):  ## /\1\t/p' Makefile | expand -t 12

test:  ## run the quick tests, one process per core; ARGS="-k quant" adds arguments of pytest
	$(RUN) $(TEST) $(ARGS)

test-all:  ## run every test of a machine without a GPU or network; takes half an hour
	HYPOTHESIS_PROFILE=ci $(RUN) --extra test-all $(TEST) -m "not gpu and not network" $(ARGS)

lint:  ## check format, style and types
	$(RUN) -m ruff format --check . ch
	$(RUN) -m ruff check . ch
	$(RUN) -m mypy

format:  ## format the code and mend what ruff can
	$(RUN) -m ruff format . ch
	$(RUN) -m ruff check --fix . ch

bench:  ## run every benchmark; each prints one table
	@for script in $$(grep -l __main__ benchmarks/*.py); do \
	    $(RUN) "$$script" $(ARGS) || exit 1; \
	done

clean:  ## remove .venv and whatever else can be made again
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find chop scripts tests benchmarks -name __pycache__ -prune -exec rm -rf {} +
