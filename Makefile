# make reproduce   run every notebook and leave figures, tables and executed notebooks in outputs/<profile>
#                  PROFILE=smoke|quick|evening|paper, or paper-recipe (for some notebooks: its file says which)
#                  DATA=cifar10, or a path  ONLY="03 04"  JOBS=1  FORCE=1  RETRAIN=1  OUTPUT=/path
#                  DRY=1 only says what would be done, and what cannot work
#                  PROFILE=evening leaves its committed record outputs/evening as it is, draws everything again beside it,
#                  in outputs/reproduced/evening, and compares
# make paper       the same at the paper's size (for a GPU)
# make record      draw the evening's record itself, after a change of notebooks (for maintainers: docs/record.md)
# make lab         JupyterLab on the notebooks
# make explore     the interactive head explorer
# make test        style, types and all tests (continuous integration tries a wheel besides: .ci/wheel)
# make lint        style and types only
# make mutants     whether the tests can fail: each mistake of tests/mutants.txt, made in a copy (hours; ONLY="swapping.py Makefile" for some)
# make bench       what attention costs on this machine, in time and memory (outputs/bench, ten minutes), ResNet-50 as attention
#                  too; and how fast the explorer and the figures with knobs are, where there is chromium
# make lock        bring requirements.lock in line with pyproject.toml; UPGRADE=1 takes the newest versions that fit together
# make clean       remove the environment and caches; outputs and data stay
#
# Each sets up .venv first if needed; PYTHON=python3.12 picks the interpreter for a new one. On a machine that already
# has torch, VENV_FLAGS=--system-site-packages uses it rather than downloading another (said once: .venv remembers it).

PYTHON ?= python3
PROFILE ?= quick
VENV := .venv
VENV_FLAGS ?= $(shell cat $(VENV)/flags 2>/dev/null)
RUN := $(VENV)/bin/python -m
ATTNCONV := $(VENV)/bin/attnconv
READY := $(VENV)/ready
# A machine's own torch stays, with the packages that it was built with.
LEFT_OUT = $(if $(findstring system-site-packages,$(VENV_FLAGS)),^(torch|torchvision|numpy|sympy)=,^$$)
# uv installs in a quarter of pip's time. pip does it where uv is not to be had, or a machine's own packages are to count.
PIP = $(RUN) pip install -qq --disable-pip-version-check --constraint $(VENV)/constraints.txt
PACKAGES = --constraint $(VENV)/constraints.txt --editable '.[test]'
AS_ROOT = $(if $(filter 0,$(shell id -u)),--allow-root)

.DEFAULT_GOAL := help
# Images for containers often forbid compiled files. Then each process would compile torch anew, in seconds.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help reproduce paper record lab explore test lint mutants bench lock clean flags
export PROFILE JOBS DATA OUTPUT ONLY

help:
	@sed -n 's/^# \{0,1\}//p;/^$$/q' Makefile

# Large buffers stay with the process: fetched from the kernel for each batch, they cost up to half the time on CPUs.
lab explore bench: export MALLOC_MMAP_MAX_ = 0
lab explore bench: export MALLOC_TRIM_THRESHOLD_ = 100000000000
reproduce: export ATTNCONV_RETRAIN = $(filter-out 0,$(RETRAIN))
# The user's words reach the shell as variables, so that no character in them means anything to it.
reproduce: $(READY)
	@$(ATTNCONV) reproduce --profile "$$PROFILE" $${JOBS:+--jobs "$$JOBS"} $${DATA:+--data "$$DATA"} \
		$${OUTPUT:+--output "$$OUTPUT"} $${ONLY:+--only="$$ONLY"} \
		$(if $(filter-out 0,$(FORCE)),--force) $(if $(filter-out 0,$(DRY)),--dry)

paper: PROFILE := paper
paper: reproduce

record: PROFILE := evening
record: OUTPUT := outputs/evening
record: reproduce

lab: $(READY)
	$(RUN) jupyter lab $(AS_ROOT) notebooks

explore: $(READY)
	$(RUN) jupyter lab $(AS_ROOT) notebooks/08_explore_the_heads.ipynb

test: lint
	$(RUN) pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

lint: $(READY)
	$(RUN) ruff check
	$(RUN) ruff format --check
	$(RUN) mypy
	$(VENV)/bin/python tests/budget.py

# No quotes around ONLY: the runner takes several words, and nothing in one means anything else to it.
mutants: $(READY)
	@set -f; nice $(VENV)/bin/python tests/mutants.py $${JOBS:+--jobs "$$JOBS"} $${ONLY:+--only $$ONLY}

bench: $(READY)
	$(VENV)/bin/python benchmarks/ratios.py
	$(VENV)/bin/python benchmarks/mixing.py
	$(VENV)/bin/python benchmarks/conversion.py
	@if { command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null; \
	then $(VENV)/bin/python benchmarks/explorer.py && $(VENV)/bin/python benchmarks/knobs.py; \
	else echo "Explorer and knobs are not timed: there is no chromium on this machine (apt-get install chromium)."; fi

lock: $(READY)
	$(PIP) uv
	cp requirements.lock $(VENV)/lock
	$(RUN) uv pip compile --quiet $(if $(UPGRADE),--upgrade) --extra test --python-version 3.11 --no-annotate --no-header \
		--output-file $(VENV)/lock pyproject.toml
	{ grep '^#' requirements.lock; grep -vE '^((nvidia|cuda)-|triton=|#)' $(VENV)/lock; } > $(VENV)/lock.new
	mv $(VENV)/lock.new requirements.lock

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache .hypothesis lib/*.egg-info

$(READY): requirements.lock pyproject.toml $(if $(filter-out $(shell cat $(VENV)/flags 2>/dev/null),$(VENV_FLAGS)),flags)
	@command -v '$(PYTHON)' >/dev/null || { echo "There is no '$(PYTHON)' on this machine. Install Python 3.11 or newer, or name it: make PYTHON=/path/to/python"; exit 1; }
	@'$(PYTHON)' -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "attnconv needs Python 3.11 or newer; '$(PYTHON)' is $$('$(PYTHON)' -V 2>&1 | cut -d' ' -f2). Name a newer one: make PYTHON=python3.12"; exit 1; }
	@'$(PYTHON)' -c 'import venv, ensurepip' 2>/dev/null || { echo "'$(PYTHON)' cannot make virtual environments. On Debian or Ubuntu: sudo apt-get install python3-venv"; exit 1; }
	@echo "Setting up $(VENV) with $$('$(PYTHON)' -V 2>&1): once, a minute or a few; without a torch of its own up to 3 GB to download, 6 GB on disk."
	@if $(VENV)/bin/python -m pip --version >/dev/null 2>&1 && [ "$$(cat $(VENV)/flags 2>/dev/null)" = '$(strip $(VENV_FLAGS))' ]; \
	then :; else '$(PYTHON)' -m venv --clear $(VENV_FLAGS) $(VENV) && echo '$(strip $(VENV_FLAGS))' > $(VENV)/flags; fi
	@grep -vE '$(LEFT_OUT)' requirements.lock > $(VENV)/constraints.txt
	@{ [ -z '$(strip $(VENV_FLAGS))' ] && $(PIP) uv 2>/dev/null && $(RUN) uv pip install --quiet --python $(VENV)/bin/python $(PACKAGES) 2>/dev/null; } || $(PIP) $(PACKAGES) \
		|| { echo "The dependencies could not be installed (above: why). The package index must be reachable; then run the same command again."; exit 1; }
	@touch $(READY)
	@echo "$(VENV) is ready."
