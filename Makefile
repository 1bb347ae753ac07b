# make demo          the real verl trainer on this machine's CPU: GRPO and ERA side by side (SEED, STEPS, TASK)
# make test          the tests
# make apply         patched upstream checkouts in checkouts/
# make llm-stage1    the paper's stage 1 on GPUs (DRY_RUN=1 prints the command)
# make help          all targets

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The first Python that the pinned packages have wheels for; PYTHON=... chooses another.
FITS := 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c $(FITS) 2>/dev/null && { command -v $$p; break; }; done)
SEED ?= 1
STEPS ?= 150
TASK ?= chain
CHECKOUTS ?= checkouts
export SEED STEPS TASK

VENV := .venv/cpu
# What the user's shell adds to Python's path is not part of this environment.
CPU := env -u PYTHONPATH -u PYTHONHOME $(VENV)/bin/python
VENV_READY := $(VENV)/installed
GPU_VENV := .venv/verl-gpu
GPU_VENV_READY := $(GPU_VENV)/installed
ACTIVE_PYTHON := $(shell command -v python3)
STAGE1 := $(CHECKOUTS)/verl/recipe/era/run_era_stage1_qwen2.5_math_7b.sh

# Progress on a terminal, one line of it; errors go to stderr and stay.
ONE_LINE := if [ -t 1 ]; then while IFS= read -r line; do printf '\r\033[K%.79s' "$$line"; done; printf '\r\033[K'; else cat > /dev/null; fi

.PHONY: help demo test apply status diff revert llm-stage1 bench bench-engine clean

help:  ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## */\1\t/' | expand -t 16

$(VENV_READY): requirements/cpu.txt
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11, 3.12 or 3.13 found. Install one, or name it: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; }
	@"$(PYTHON)" -c $(FITS) 2>/dev/null || { echo "error: PYTHON=$(PYTHON) is not a Python 3.11, 3.12 or 3.13. Nothing was changed." >&2; exit 1; }
	@echo "Setting up $(VENV) with $$("$(PYTHON)" --version): a download of up to 3 GB, two minutes or more, the first time only."
	@$(CPU) -c $(FITS) 2>/dev/null || { rm -rf $(VENV); "$(PYTHON)" -m venv $(VENV); }
	@set -o pipefail; $(CPU) -m pip install --disable-pip-version-check -r requirements/cpu.txt | $(ONE_LINE)
	@touch $@

demo: $(VENV_READY)  ## train a tiny model with the real verl trainer, GRPO and ERA, and draw the entropies (SEED, STEPS, TASK=chain|chain-biased|chain-single)
	@$(CPU) apply.py apply verl --checkouts "$(CHECKOUTS)"
	@$(CPU) -m demo --seed "$$SEED" --steps "$$STEPS" --task "$$TASK" --checkout "$(CHECKOUTS)/verl" --out results/demo

test: $(VENV_READY)  ## run all tests
	@$(CPU) -m pytest tests -q -ra

apply:  ## patched checkouts of all upstreams in checkouts/
	@python3 apply.py apply --checkouts "$(CHECKOUTS)"

status:  ## a line on each checkout
	@python3 apply.py status --checkouts "$(CHECKOUTS)"

diff:  ## what the overlays change, as git shows it
	@python3 apply.py diff --checkouts "$(CHECKOUTS)"

revert:  ## back to the pinned upstreams; refuses over local edits
	@python3 apply.py revert --checkouts "$(CHECKOUTS)"

# Everything that is missing is said before an environment of many GB is made.
llm-stage1:  ## the paper's LLM stage 1 on GPUs (DRY_RUN=1 prints the command)
	@test -f "$(STAGE1)" || { echo "error: $(STAGE1) is not there. Run 'make apply' first." >&2; exit 1; }
	@python="$(CURDIR)/$(GPU_VENV)/bin/python"; \
	if lacks=$$("$(ACTIVE_PYTHON)" requirements/check_gpu_environment.py); then python="$(ACTIVE_PYTHON)"; fi; \
	if [[ -n "$(DRY_RUN)" ]]; then exec env DRY_RUN=1 PYTHON="$$python" bash "$(STAGE1)"; fi; \
	if [[ ! -f $(GPU_VENV_READY) && -n "$$lacks" ]]; then \
		CHECK_ONLY=1 PYTHON="$(ACTIVE_PYTHON)" bash "$(STAGE1)" || exit 1; \
		echo "$$lacks"; $(MAKE) --no-print-directory $(GPU_VENV_READY) || exit 1; \
	fi; \
	exec env PYTHON="$$python" bash "$(STAGE1)"

$(GPU_VENV_READY): requirements/verl-gpu.txt requirements/verl-gpu-flash-attn.txt
	@"$(ACTIVE_PYTHON)" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' || { echo "error: vllm 0.8.5 needs Python 3.10 to 3.12, the active one is $$("$(ACTIVE_PYTHON)" --version). Activate an environment with one of these." >&2; exit 1; }
	@echo "Setting up $(GPU_VENV) from requirements/verl-gpu.txt: about 10 GB."
	@test -x $(GPU_VENV)/bin/python || "$(ACTIVE_PYTHON)" -m venv $(GPU_VENV)
	@$(GPU_VENV)/bin/python -m pip install --disable-pip-version-check -r requirements/verl-gpu.txt
	@$(GPU_VENV)/bin/python -m pip install --disable-pip-version-check --no-build-isolation -r requirements/verl-gpu-flash-attn.txt
	@touch $@

bench: $(VENV_READY)  ## time and memory of the log-probs with and without ERA, as ratios
	@$(CPU) apply.py apply verl --checkouts "$(CHECKOUTS)"
	@$(CPU) benchmarks/logprobs.py --checkout "$(CHECKOUTS)/verl"

bench-engine: $(VENV_READY)  ## time of apply.py's verbs
	@$(CPU) benchmarks/engine.py

clean:  ## remove virtual environments and results; checkouts stay
	rm -rf .venv results
