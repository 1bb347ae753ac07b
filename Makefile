# make demo          the real verl trainer on this machine's CPU: GRPO and ERA side by side (SEED, STEPS, TASK)
# make test          the tests
# make apply         patched upstream checkouts in checkouts/
# make llm-stage1    the paper's stage 1 on GPUs; llm-... for its other runs (DRY_RUN=1 prints the command)
# make help          all targets

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# What the user gives reaches the recipes through the environment, as "$$NAME" and unexpanded: whatever characters it holds.
GIVEN := PYTHON CHECKOUTS SEED STEPS TASK SCRIPTS RAY_DATA_HOME DATA SETS MODEL_PATH OUT EVAL ARGS
$(foreach name,$(GIVEN),$(if $(filter-out undefined,$(origin $(name))),$(eval override $(name) := $$(value $(name)))$(eval export $(name))))

# The Pythons that the pinned packages have wheels for. The first one found is taken; PYTHON=... chooses another.
FITS := 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'
SEED ?= 1
STEPS ?= 150
TASK ?= chain
CHECKOUTS ?= checkouts

VENV := .venv/cpu
# What the user's shell adds to Python's path is not part of this environment.
CPU := env -u PYTHONPATH -u PYTHONHOME $(VENV)/bin/python
VENV_READY := $(VENV)/installed
GPU_VENV := .venv/verl-gpu
GPU_VENV_READY := $(GPU_VENV)/installed
RAY_DATA_HOME ?= $(HOME)/verl
DATA ?= $(RAY_DATA_HOME)/data
export SEED STEPS TASK CHECKOUTS RAY_DATA_HOME DATA

# Progress on a terminal, one line of it; errors go to stderr and stay.
ONE_LINE := if [ -t 1 ]; then while IFS= read -r line; do printf '\r\033[K%.79s' "$$line"; done; printf '\r\033[K'; else cat > /dev/null; fi

# Every run of the paper is one line `llm-<name>: RUN = <script>  ## ...` below.
LLM_RUNS := $(shell sed -nE 's/^(llm-[^:]*): RUN = .*/\1/p' $(lastword $(MAKEFILE_LIST)))

.PHONY: help demo test apply status diff revert llm-smoke llm-data llm-eval $(LLM_RUNS) agreement bench bench-actor bench-engine clean

##@ The project
help:  ## this list
	@awk 'BEGIN { FS = ":.*## " } \
		/^##@ / { printf "%s%s\n", separator, substr($$0, 5); separator = "\n" } \
		/^[a-z0-9.-]+:.*## / { printf "  %-22s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(VENV_READY): requirements/cpu.txt
	@set -e; python="$${PYTHON-$$(for p in python3 python3.13 python3.12 python3.11; do $$p -c $(FITS) 2>/dev/null && { command -v $$p; break; }; done)}"; \
	test -n "$$python" || { echo "error: no Python 3.11, 3.12 or 3.13 found. Install one, or name it: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; }; \
	"$$python" -c $(FITS) 2>/dev/null || { echo "error: PYTHON=$$python is not a Python 3.11, 3.12 or 3.13. Nothing was changed." >&2; exit 1; }; \
	echo "Setting up $(VENV) with $$("$$python" --version): a download of up to 3 GB, two minutes or more, the first time only."; \
	$(CPU) -c $(FITS) 2>/dev/null || { rm -rf $(VENV); "$$python" -m venv $(VENV); }
	@set -o pipefail; $(CPU) -m pip install --disable-pip-version-check -r requirements/cpu.txt | $(ONE_LINE)
	@touch $@

demo: $(VENV_READY)  ## GRPO beside ERA in the real verl trainer (SEED, STEPS, TASK=chain|chain-biased|chain-single)
	@$(CPU) apply.py apply verl --checkouts "$$CHECKOUTS"
	@$(CPU) -m demo --seed "$$SEED" --steps "$$STEPS" --task "$$TASK" --checkout "$$CHECKOUTS/verl" --out results/demo

test: $(VENV_READY)  ## run all tests
	@$(CPU) -m pytest tests -q -ra

apply:  ## patched checkouts of all upstreams in checkouts/
	@python3 apply.py apply --checkouts "$$CHECKOUTS"

status:  ## a line on each checkout
	@python3 apply.py status --checkouts "$$CHECKOUTS"

diff:  ## what the overlays change, as git shows it
	@python3 apply.py diff --checkouts "$$CHECKOUTS"

revert:  ## back to the pinned upstreams; refuses over local edits
	@python3 apply.py revert --checkouts "$$CHECKOUTS"

##@ The paper's LLM runs on GPUs (DRY_RUN=1 prints the command, ARGS="trainer.save_freq=5 ..." adds to it; docs/recipes.md)
llm-stage1: RUN = run_era_stage1_qwen2.5_math_7b.sh  ## ERA stage 1, Qwen2.5-Math-7B (main results)
llm-stage2: RUN = run_era_stage2_qwen2.5_math_7b.sh  ## ERA stage 2, from stage 1's checkpoint (main results)
llm-grpo: RUN = run_grpo_qwen2.5_math_7b.sh  ## GRPO (main results)
llm-forking: RUN = run_forking_tokens_qwen2.5_math_7b.sh  ## GRPO with 20 % forking tokens (main results)
llm-kl-cov: RUN = run_kl_cov_qwen2.5_math_7b.sh  ## KL-Cov (main results)
llm-clip-cov: RUN = run_clip_cov_qwen2.5_math_7b.sh  ## Clip-Cov (main results)
llm-grpo-1.5b: RUN = run_grpo_qwen2.5_math_1.5b.sh  ## GRPO, Qwen2.5-Math-1.5B (more models)
llm-era-1.5b: RUN = run_era_qwen2.5_math_1.5b.sh  ## ERA, Qwen2.5-Math-1.5B (more models)
llm-gspo: RUN = run_gspo_qwen2.5_math_7b.sh  ## GSPO (more models)
llm-gspo-era: RUN = run_gspo_era_qwen2.5_math_7b.sh  ## GSPO + ERA (more models)
llm-no-omega-high: RUN = run_era_no_omega_high_qwen2.5_math_7b.sh  ## ERA without omega_high (effect of the upper bound)
llm-no-top-k: RUN = run_era_no_top_k_qwen2.5_math_7b.sh  ## ERA without the top-k filter (entropy analysis)
llm-scale-advantages: RUN = run_era_scale_advantages_qwen2.5_math_7b.sh  ## ERA with advantage scaling (ablation)
llm-release-gate: RUN = run_era_release_gate_qwen2.5_math_7b.sh  ## ERA with the release's gate, advantages above 1 (ablation)

DRY := $(filter-out 0,$(DRY_RUN))
CHECK := $(filter-out 0,$(CHECK_ONLY))

# Shell commands: sets $$file to a file of the recipe in the checkout.
in-checkout = file="$$CHECKOUTS/verl/recipe/era/$(strip $(1))"; \
	[[ -f "$$file" ]] || { echo "error: $$file is not there. Run 'make apply' first." >&2; exit 1; }

# Shell commands: sets $$python to that of the GPU environment, which is PYTHON, the active one if it has all, or one made
# here. $$lacks is empty unless the last is yet to be made, and then says why it must be.
define find-gpu-python
active=$$(command -v python3); lacks=; python="$(CURDIR)/$(GPU_VENV)/bin/python"; \
	if [[ -n "$$PYTHON" ]]; then python=$$PYTHON; \
	elif problem=$$("$$active" requirements/check_gpu_environment.py); then python=$$active; \
	elif [[ ! -f $(GPU_VENV_READY) ]]; then lacks=$$problem; fi
endef

make-gpu-environment = echo "$$lacks"; $(MAKE) --no-print-directory $(GPU_VENV_READY) || exit 1

# Shell commands: splits the variable $(1) into the array `words`, quotes as in the shell.
define split
set -f; eval "words=($$$(1))" 2> /dev/null || { printf 'error: %s=%s cannot be read as words of the shell: put what is special there in quotes, and end each. Nothing was changed.\n' $(1) "$$$(1)" >&2; exit 1; }
endef

# Shell commands: `run COMMAND...` runs it in place of the shell, or prints it with DRY_RUN as the run scripts do.
define or-print
run() { $(if $(DRY),printf '%q' "$$1"; printf ' %q' "$${@:2}"; echo,command -v "$$1" > /dev/null || { echo "error: there is no Python at $$1. Set PYTHON to an environment's python. Nothing was changed." >&2; exit 1; }; exec "$$@"); }
endef

$(LLM_RUNS):
	@$(call in-checkout,$(RUN)); $(call split,ARGS); $(find-gpu-python); \
	if [[ -n "$$lacks" && -z "$(DRY)" ]]; then \
		env CHECK_ONLY=1 ENVIRONMENT_TO_COME=1 PYTHON="$$active" bash "$$file" "$${words[@]}" && [[ -z "$(CHECK)" ]] || \
			{ echo "There is no environment for this run yet. $$lacks Once all else is there, make without CHECK_ONLY sets one up in $(GPU_VENV) (about 10 GB); PYTHON=... names another." >&2; exit 1; }; \
		$(make-gpu-environment); \
	fi; \
	exec env PYTHON="$$python" ENVIRONMENT_TO_COME="$${lacks:+$(DRY)}" bash "$$file" "$${words[@]}"

llm-smoke: $(VENV_READY)  ## every run script for a few steps on this CPU, with a tiny model (SCRIPTS="run_... ...")
	@$(CPU) apply.py apply verl --checkouts "$$CHECKOUTS"
	@read -ra scripts <<< "$$SCRIPTS"; $(CPU) -m demo.smoke --checkout "$$CHECKOUTS/verl" --out results/smoke "$${scripts[@]}"

llm-data:  ## the runs' data (SETS="train math ood", DATA=~/verl/data); no GPU needed
	@$(call in-checkout,prepare_data.py); read -ra sets <<< "$${SETS:-all}"; $(or-print); python=$$PYTHON; \
	if [[ -z "$$python" ]]; then \
		python="$(CURDIR)/$(VENV)/bin/python"; unset PYTHONPATH PYTHONHOME; \
		if [[ -z "$(DRY)" ]]; then \
			python3 "$$file" --list "$${sets[@]}" > /dev/null && $(MAKE) --no-print-directory $(VENV_READY) || exit 1; \
		fi; \
	fi; \
	run "$$python" "$$file" "$${sets[@]}" --out "$$DATA"

llm-eval:  ## evaluate a model, as the paper does (MODEL_PATH=<folder>, DATA, OUT, EVAL="more flags")
	@[[ -n "$$MODEL_PATH" ]] || { echo "error: no model. Name its folder: make llm-eval MODEL_PATH=..." >&2; exit 1; }; \
	$(call in-checkout,evaluate.py); $(call split,EVAL); $(find-gpu-python); $(or-print); \
	if [[ -z "$(DRY)" ]]; then \
		[[ -f "$$MODEL_PATH/config.json" ]] || { echo "error: MODEL_PATH=$$MODEL_PATH is not the folder of a model: it has no config.json. Nothing was changed." >&2; exit 1; }; \
		if [[ -n "$$lacks" ]]; then $(make-gpu-environment); fi; \
	fi; \
	run "$$python" "$$file" --model "$$MODEL_PATH" --data "$$DATA/eval" --out "$${OUT:-$$RAY_DATA_HOME/eval/$$(basename "$$MODEL_PATH")}" "$${words[@]}"

$(GPU_VENV_READY): requirements/verl-gpu.txt requirements/verl-gpu-flash-attn.txt
	@python3 -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' || { echo "error: vllm 0.8.5 needs Python 3.10 to 3.12, the active one is $$(python3 --version). Activate an environment with one of these. Nothing was changed." >&2; exit 1; }
	@echo "Setting up $(GPU_VENV) from requirements/verl-gpu.txt: about 10 GB."
	@test -x $(GPU_VENV)/bin/python || python3 -m venv $(GPU_VENV)
	@$(GPU_VENV)/bin/python -m pip install --disable-pip-version-check -r requirements/verl-gpu.txt
	@$(GPU_VENV)/bin/python -m pip install --disable-pip-version-check --no-build-isolation -r requirements/verl-gpu-flash-attn.txt || { \
		echo "error: flash-attn could not be installed; pip's reason is above. Building it takes the CUDA toolkit 12.4 with nvcc, which torch 2.6.0 is built with (CUDA_HOME names its folder), and a C++ compiler: a login node often has neither, so try on a node with GPUs. All other packages are in $(GPU_VENV) and stay; the same command goes on from there." >&2; exit 1; }
	@touch $@

##@ Measurements and cleaning
agreement: $(VENV_READY)  ## how far log-probs and gradients of ERA's code paths lie apart
	@$(CPU) apply.py apply verl --checkouts "$$CHECKOUTS"
	@$(CPU) tests/verl_overlay/agreement.py "$$CHECKOUTS/verl"

bench: $(VENV_READY)  ## time and memory of the log-probs with and without ERA, as ratios
	@$(CPU) apply.py apply verl --checkouts "$$CHECKOUTS"
	@$(CPU) benchmarks/logprobs.py --checkout "$$CHECKOUTS/verl"

bench-actor: $(VENV_READY)  ## time and memory of the actor's old_log_prob and update: GRPO, ERA, the release's way
	@$(CPU) apply.py apply verl --checkouts "$$CHECKOUTS"
	@$(CPU) benchmarks/actor.py --checkout "$$CHECKOUTS/verl"

bench-engine: $(VENV_READY)  ## time of apply.py's verbs
	@$(CPU) benchmarks/engine.py

clean:  ## remove virtual environments and results; checkouts stay
	rm -rf .venv results
