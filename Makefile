# make demo          the real verl trainer on this machine's CPU: GRPO and ERA side by side (SEED, STEPS, TASK)
# make test          the tests
# make apply         patched upstream checkouts in checkouts/
# make llm-stage1    the paper's stage 1 on GPUs; llm-... for its other runs (DRY_RUN=1 prints the command)
# make vision-cifar10-aug-era    the paper's classifiers on GPUs likewise; vision-... for its other runs
# make control-humanoidbench    the paper's FastTD3 and FastSAC-ERA on GPUs likewise; control-... for its other runs
# make help          all targets

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# What the user gives reaches the recipes through the environment, as "$$NAME" and unexpanded: whatever characters it holds.
GIVEN := PYTHON CHECKOUTS SEED STEPS TASK SCRIPTS RAY_DATA_HOME DATA SETS CKPT MODEL_PATH OUT EVAL ARGS EPOCHS RUNS DATA_DIR OUTPUT H0 TASKS AGENT FOLDERS
$(foreach name,$(GIVEN),$(if $(filter-out undefined,$(origin $(name))),$(eval override $(name) := $$(value $(name)))$(eval export $(name))))

# The Pythons that the pinned packages have wheels for. The first one found is taken; PYTHON=... chooses another.
FITS := 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'
TASK ?= chain
CHECKOUTS ?= checkouts

VENV := .venv/cpu
# What the user's shell adds to Python's path is not part of this environment.
CPU := env -u PYTHONPATH -u PYTHONHOME $(VENV)/bin/python
VENV_READY := $(VENV)/installed
LINT := $(VENV)/bin/ruff check --quiet . && $(VENV)/bin/ruff format --check --quiet .
GPU_VENV := .venv/verl-gpu
GPU_VENV_READY := $(GPU_VENV)/installed
TIMM_GPU_VENV := .venv/timm-gpu
TIMM_GPU_VENV_READY := $(TIMM_GPU_VENV)/installed
FASTTD3_GPU_VENV := .venv/fasttd3-gpu
FASTTD3_GPU_VENV_READY := $(FASTTD3_GPU_VENV)/installed
RAY_DATA_HOME ?= $(HOME)/verl
DATA ?= $(RAY_DATA_HOME)/data
export TASK CHECKOUTS RAY_DATA_HOME DATA

# Progress on a terminal, one line of it; errors go to stderr and stay.
ONE_LINE := if [ -t 1 ]; then while IFS= read -r line; do printf '\r\033[K%.79s' "$$line"; done; printf '\r\033[K'; else cat > /dev/null; fi

# Every run of the paper is one line `llm-<name>: RUN = <script>  ## ...` below.
LLM_RUNS := $(shell sed -nE 's/^(llm-[^:]*): RUN = .*/\1/p' $(lastword $(MAKEFILE_LIST)))
# Likewise `vision-<name>: RUN = <experiment of recipes/era/runs.py>  ## ...`.
VISION_RUNS := $(shell sed -nE 's/^(vision-[^:]*): RUN = .*/\1/p' $(lastword $(MAKEFILE_LIST)))
# And `control-<name>: RUN = <experiment of FastTD3's recipes/era/runs.py>  ## ...`.
CONTROL_RUNS := $(shell sed -nE 's/^(control-[^:]*): RUN = .*/\1/p' $(lastword $(MAKEFILE_LIST)))

.PHONY: help demo demo-vision demo-control report test test-all test-engine format apply status diff revert drift llm-smoke llm-data llm-merge llm-eval $(LLM_RUNS) vision-smoke vision-results $(VISION_RUNS) \
	control-smoke control-results $(CONTROL_RUNS) \
	agreement bench bench-actor bench-ledger bench-engine floor-search vision-models bench-vision bench-control entropy-search learned-delta clean

##@ The project
help:  ## this list
	@awk 'BEGIN { FS = ":.*## " } \
		/^##@ / { printf "%s%s\n", separator, substr($$0, 5); separator = "\n" } \
		/^[a-z0-9.-]+:.*## / { printf "  %-31s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Without its Python (one of the system that is gone, say) the environment is made anew, whatever the stamp says.
$(VENV_READY): requirements/cpu.txt $(if $(shell test -x $(VENV)/bin/python && echo there),,no-python)
	@set -e; python="$${PYTHON:-$$(for p in python3 python3.13 python3.12 python3.11; do $$p -c $(FITS) 2>/dev/null && { command -v $$p; break; }; done; :)}"; \
	test -n "$$python" || { echo "error: no Python 3.11, 3.12 or 3.13 found. Install one, or name it: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; }; \
	"$$python" -c $(FITS) 2>/dev/null || { echo "error: PYTHON=$$python is not a Python 3.11, 3.12 or 3.13. Nothing was changed." >&2; exit 1; }; \
	echo "Setting up $(VENV) with $$("$$python" --version): a download of up to 3 GB, two minutes or more, the first time only."; \
	$(CPU) -c $(FITS) 2>/dev/null || { rm -rf $(VENV); "$$python" -m venv $(VENV); }
	@set -o pipefail; $(CPU) -m pip install --disable-pip-version-check -r requirements/cpu.txt | $(ONE_LINE)
	@touch $@

.PHONY: no-python
no-python:

demo: $(VENV_READY)  ## GRPO beside ERA in verl's trainer (SEED, STEPS, TASK=chain|chain-biased|chain-single)
	@$(CPU) apply.py apply verl --checkouts "$$CHECKOUTS"
	@$(CPU) -m demo.llm --seed "$${SEED:-1}" --steps "$${STEPS:-150}" --task "$$TASK" --checkout "$$CHECKOUTS/verl" --out results/demo

demo-vision: $(VENV_READY)  ## timm's train.py on scikit-learn's digits, with and without ERA (SEED="1 2 3", EPOCHS)
	@$(CPU) apply.py apply timm --checkouts "$$CHECKOUTS"
	@read -ra seeds <<< "$$SEED"; $(CPU) -m demo.vision --checkout "$$CHECKOUTS/timm" --out results/demo-vision \
		$${SEED:+--seeds "$${seeds[@]}"} $${EPOCHS:+--epochs "$$EPOCHS"}

demo-control: $(VENV_READY)  ## FastTD3's train.py on HalfCheetah: FastTD3 beside FastSAC-ERA (SEED="1 2 3", STEPS)
	@$(CPU) apply.py apply fasttd3 --checkouts "$$CHECKOUTS" || { code=$$?; \
		[[ $$code -ne 6 ]] || echo "FastTD3 is on no package index, so this demo needs git access to the address above, or a clone in its place: git config --global url.<the clone>.insteadOf <the address> (docs/engine/usage.md)." >&2; \
		exit $$code; }
	@read -ra seeds <<< "$$SEED"; $(CPU) -m demo.control --checkout "$$CHECKOUTS/fasttd3" --out results/demo-control \
		$${SEED:+--seeds "$${seeds[@]}"} $${STEPS:+--steps "$$STEPS"}

report: $(VENV_READY)  ## the paper's tables and figures beside our results (FOLDERS="copied/a copied/b")
	@read -ra folders <<< "$$FOLDERS"; $(CPU) reproduce.py collect "$${folders[@]}"
	@$(CPU) reproduce.py report

test: $(VENV_READY)  ## lint, and every contract on every real upstream once: 8 minutes on two cores
	@$(LINT)
	@$(CPU) -m pytest tests -q -n 2 --dist loadfile -m "not slow"

test-all: $(VENV_READY)  ## the same and the slow rest: kills, every script, every model family: 20 minutes
	@$(LINT)
	@$(CPU) -m pytest tests -q -n 2 --dist loadfile

format: $(VENV_READY)  ## bring our files into ruff's format
	@$(VENV)/bin/ruff format . && $(VENV)/bin/ruff check --fix .

test-engine: $(VENV_READY)  ## the engine's long proof: faults, inputs, sequences; counts in results/engine-proof
	@rm -rf results/engine-proof; mkdir -p results/engine-proof
	@ERA_PROOF=long ERA_PROOF_RESULTS=results/engine-proof $(CPU) -m pytest tests/engine -q -ra -n 2 --dist worksteal; status=$$?; \
		$(CPU) tests/engine/proof/tally.py results/engine-proof; exit $$status

apply:  ## patched checkouts of all upstreams in checkouts/
	@python3 apply.py apply --checkouts "$$CHECKOUTS"

status:  ## a line on each checkout
	@python3 apply.py status --checkouts "$$CHECKOUTS"

diff:  ## what the overlays change, as git shows it
	@python3 apply.py diff --checkouts "$$CHECKOUTS"

revert:  ## back to the pinned upstreams; refuses over local edits
	@python3 apply.py revert --checkouts "$$CHECKOUTS"

drift:  ## each patch on every newer release of its upstream; the table goes to docs/engine/drift.md
	@python3 apply.py drift --checkouts "$$CHECKOUTS" --out docs/engine

##@ The paper's LLM runs on GPUs (DRY_RUN=1 prints the command, ARGS="trainer.save_freq=5 ..." adds to it; docs/llm/recipes.md)
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

# Shell commands: sets $$file to the file $(1) in the checkouts.
in-checkout = file="$$CHECKOUTS/$(strip $(1))"; \
	[[ -f "$$file" ]] || { echo "error: $$file is not there. Run 'make apply' first (python3 apply.py apply $(firstword $(subst /, ,$(1))) --checkouts $$CHECKOUTS, for this one alone)." >&2; exit 1; }

# Shell commands: sets $$python to that of the GPU environment for $(1) (verl, timm, fasttd3), which is PYTHON, the active one if it
# has all, or the one made here in $(2). $$lacks is empty unless the last is yet to be made, and then says why it must be.
define find-gpu-python
active=$$(command -v python3); lacks=; python="$(CURDIR)/$(strip $(2))/bin/python"; \
	if [[ -n "$$PYTHON" ]]; then python=$$PYTHON; \
	elif problem=$$("$$active" requirements/check_gpu_environment.py $(1)); then python=$$active; \
	elif [[ ! -f $(strip $(2))/installed ]]; then lacks=$$problem; fi
endef

make-gpu-environment = echo "$$lacks"; $(MAKE) --no-print-directory $(strip $(1))/installed || exit 1

# Shell commands: ends unless the command $(3) finds all there but the environment, and makes that in $(1); $(2) is its size.
define make-environment-last
	if [[ -n "$$lacks" && -z "$(DRY)" ]]; then \
		env CHECK_ONLY=1 ENVIRONMENT_TO_COME=1 PYTHON="$$active" $(3) "$${words[@]}" && [[ -z "$(CHECK)" ]] || \
			{ echo "There is no environment for this run yet. $$lacks Once all else is there, make without CHECK_ONLY sets one up in $(strip $(1)) (about $(strip $(2))); PYTHON=... names another." >&2; exit 1; }; \
		$(call make-gpu-environment,$(1)); \
	fi
endef

# Shell commands: splits the variable $(1) into the array `words`, quotes as in the shell.
define split
set -f; eval "words=($$$(1))" 2> /dev/null || { printf 'error: %s=%s cannot be read as words of the shell: put what is special there in quotes, and end each. Nothing was changed.\n' $(1) "$$$(1)" >&2; exit 1; }
endef

check-python = command -v $(1) > /dev/null || { echo "error: there is no Python at "$(1)". Set PYTHON to an environment's python. Nothing was changed." >&2; exit 1; }

# Shell commands: `run COMMAND...` runs it in place of the shell, or prints it with DRY_RUN as the run scripts do.
define or-print
run() { $(if $(DRY),printf '%q' "$$1"; printf ' %q' "$${@:2}"; echo,$(call check-python,"$$1"); exec "$$@"); }
endef

$(LLM_RUNS):
	@$(call in-checkout,verl/recipe/era/$(RUN)); $(call split,ARGS); $(call find-gpu-python,verl,$(GPU_VENV)); \
	$(call make-environment-last,$(GPU_VENV),10 GB,bash "$$file"); \
	exec env PYTHON="$$python" ENVIRONMENT_TO_COME="$${lacks:+$(DRY)}" bash "$$file" "$${words[@]}"

llm-smoke: $(VENV_READY)  ## every run script for a few steps on this CPU, with a tiny model (SCRIPTS="run_... ...")
	@$(CPU) apply.py apply verl --checkouts "$$CHECKOUTS"
	@read -ra scripts <<< "$$SCRIPTS"; $(CPU) -m tools.smoke.llm --checkout "$$CHECKOUTS/verl" --out results/smoke "$${scripts[@]}"

llm-data:  ## the runs' data (SETS="train math ood", DATA=~/verl/data)
	@$(call in-checkout,verl/recipe/era/prepare_data.py); read -ra sets <<< "$${SETS:-all}"; $(or-print); python=$$PYTHON; \
	if [[ -z "$$python" ]]; then \
		python="$(CURDIR)/$(VENV)/bin/python"; unset PYTHONPATH PYTHONHOME; \
		if [[ -z "$(DRY)" ]]; then \
			python3 "$$file" --list "$${sets[@]}" > /dev/null && $(MAKE) --no-print-directory $(VENV_READY) || exit 1; \
		fi; \
	fi; \
	run "$$python" "$$file" "$${sets[@]}" --out "$$DATA"

# verl's merger writes into a folder beside MODEL_PATH, which gets its name at the end.
llm-merge:  ## merge a run's checkpoint into a model (CKPT=.../global_step_600, MODEL_PATH=...)
	@[[ -n "$$CKPT" && -n "$$MODEL_PATH" ]] || { echo "error: name the checkpoint and the model's new folder: make llm-merge CKPT=.../global_step_600 MODEL_PATH=..." >&2; exit 1; }; \
	$(call in-checkout,verl/verl/model_merger/__main__.py); $(call find-gpu-python,verl,$(GPU_VENV)); $(or-print); \
	absolute() { [[ "$$1" == /* ]] && printf '%s' "$$1" || printf '%s/%s' "$$PWD" "$$1"; }; \
	actor=$$(absolute "$${CKPT%/}")/actor; model=$$(absolute "$${MODEL_PATH%/}"); [[ "$$python" != */* ]] || python=$$(absolute "$$python"); \
	words=("$$python" -m verl.model_merger merge --backend fsdp --local_dir "$$actor" --target_dir); \
	if [[ -n "$(DRY)" ]]; then printf 'cd %q && ' "$$CHECKOUTS/verl"; run "$${words[@]}" "$$model"; exit; fi; \
	if [[ -f "$$model/config.json" ]]; then echo "$$model is there already, so nothing is merged."; exit; fi; \
	[[ ! -e "$$model" ]] || { echo "error: MODEL_PATH=$$model is there and is no model: it has no config.json. Remove it or name another. Nothing was changed." >&2; exit 1; }; \
	ranks=$$(sed -nE 's/.*"world_size": *([0-9]+).*/\1/p' "$$actor/fsdp_config.json" 2> /dev/null); \
	[[ -n "$$ranks" ]] || { echo "error: CKPT=$$CKPT is not a checkpoint of an FSDP run: $$actor/fsdp_config.json is not there, or names no world_size. Nothing was changed." >&2; exit 1; }; \
	for ((rank = 0; rank < ranks; rank++)); do \
		[[ -f "$$actor/model_world_size_$${ranks}_rank_$$rank.pt" ]] || { echo "error: CKPT=$$CKPT is not whole: of $$ranks ranks, $$actor/model_world_size_$${ranks}_rank_$$rank.pt is not there. Nothing was changed." >&2; exit 1; }; \
	done; \
	if [[ -n "$$lacks" ]]; then $(call make-gpu-environment,$(GPU_VENV)); else $(call check-python,"$$python"); fi; \
	beside=$$model.merging-$$$$; mkdir -p "$$(dirname "$$model")" && mkdir "$$beside" && trap 'rm -rf "$$beside"' EXIT && \
	(cd "$$CHECKOUTS/verl" && run "$${words[@]}" "$$beside") && { [[ -e "$$model" ]] || mv "$$beside" "$$model"; } && echo "$$model is made of $$CKPT."

llm-eval:  ## evaluate a model as the paper does (MODEL_PATH, SETS="aime24", DATA, OUT, EVAL="flags")
	@[[ -n "$$MODEL_PATH" ]] || { echo "error: no model. Name its folder: make llm-eval MODEL_PATH=..." >&2; exit 1; }; \
	$(call in-checkout,verl/recipe/era/evaluate.py); $(call split,EVAL); $(call find-gpu-python,verl,$(GPU_VENV)); $(or-print); \
	if [[ -z "$(DRY)" ]]; then \
		[[ -f "$$MODEL_PATH/config.json" ]] || { echo "error: MODEL_PATH=$$MODEL_PATH is not the folder of a model: it has no config.json. Nothing was changed." >&2; exit 1; }; \
		if [[ -n "$$lacks" ]]; then $(call make-gpu-environment,$(GPU_VENV)); fi; \
	fi; \
	data=(); read -ra sets <<< "$$SETS"; for name in "$${sets[@]}"; do data+=("$$DATA/eval/$$name.parquet"); done; \
	run "$$python" "$$file" --model "$$MODEL_PATH" --data "$${data[@]:-$$DATA/eval}" --out "$${OUT:-$$RAY_DATA_HOME/eval/$$(basename "$$MODEL_PATH")}" "$${words[@]}"

$(GPU_VENV_READY): requirements/verl-gpu.txt requirements/verl-gpu-flash-attn.txt
	@python3 -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' || { echo "error: vllm 0.8.5 needs Python 3.10 to 3.12, the active one is $$(python3 --version). Activate an environment with one of these. Nothing was changed." >&2; exit 1; }
	@echo "Setting up $(GPU_VENV) from requirements/verl-gpu.txt: about 10 GB."
	@test -x $(GPU_VENV)/bin/python || python3 -m venv $(GPU_VENV)
	@$(GPU_VENV)/bin/python -m pip install --disable-pip-version-check -r requirements/verl-gpu.txt
	@$(GPU_VENV)/bin/python -m pip install --disable-pip-version-check --no-build-isolation -r requirements/verl-gpu-flash-attn.txt || { \
		echo "error: flash-attn could not be installed; pip's reason is above. Building it takes the CUDA toolkit 12.4 with nvcc, which torch 2.6.0 is built with (CUDA_HOME names its folder), and a C++ compiler: a login node often has neither, so try on a node with GPUs. All other packages are in $(GPU_VENV) and stay; the same command goes on from there." >&2; exit 1; }
	@touch $@

##@ The paper's image classifiers on GPUs (DRY_RUN=1, ARGS="...", SEED="42 43", GPUS, DATA_DIR; docs/vision/recipes.md)
vision-cifar10: RUN = cifar10  ## ResNet-50 on CIFAR-10, three seeds (main results)
vision-cifar10-era: RUN = cifar10-era  ## the same with ERA (main results)
vision-cifar10-aug: RUN = cifar10-aug  ## with augmentation (main results)
vision-cifar10-aug-era: RUN = cifar10-aug-era  ## with augmentation and ERA (main results)
vision-imagenet: RUN = imagenet  ## ResNet-50 on ImageNet (main results)
vision-imagenet-era: RUN = imagenet-era  ## the same with ERA (main results)
vision-imagenet-aug: RUN = imagenet-aug  ## with augmentation (main results)
vision-imagenet-aug-era: RUN = imagenet-aug-era  ## with augmentation and ERA (main results)
vision-cifar10-sweep: RUN = cifar10-sweep  ## ERA with several H0 (minimal entropy; H0="0.3 0.9", AUG=1)
vision-imagenet-sweep: RUN = imagenet-sweep  ## ERA with several H0, 100 epochs (minimal entropy; H0, AUG=1)
vision-cifar10-regularization: RUN = cifar10-regularization  ## label smoothing and dropout beside ERA (AUG=1)
vision-cifar10-time: RUN = cifar10-time  ## time of a training step with ERA and without, 3 epochs (EPOCHS)

$(VISION_RUNS):
	@$(call in-checkout,timm/recipes/era/launch.py); $(call split,ARGS); $(call find-gpu-python,timm,$(TIMM_GPU_VENV)); \
	$(call make-environment-last,$(TIMM_GPU_VENV),5 GB,"$$active" "$$file" $(RUN)); \
	exec env PYTHON="$$python" ENVIRONMENT_TO_COME="$${lacks:+$(DRY)}" "$$active" "$$file" $(RUN) "$${words[@]}"

vision-results:  ## table of the runs in OUTPUT (default: output/era of the checkout)
	@$(call in-checkout,timm/recipes/era/results.py); python3 "$$file" $${OUTPUT:+"$$OUTPUT"}

vision-smoke: $(VENV_READY)  ## each of these runs for an epoch on this CPU, with a tiny model (RUNS="cifar10 ...")
	@$(CPU) apply.py apply timm --checkouts "$$CHECKOUTS"
	@read -ra names <<< "$$RUNS"; $(CPU) -m tools.smoke.vision --checkout "$$CHECKOUTS/timm" --out results/smoke-vision "$${names[@]}"

$(TIMM_GPU_VENV_READY): requirements/timm-gpu.txt
	@python3 -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' || { echo "error: torch 2.6.0 and this project need Python 3.10 to 3.13, the active one is $$(python3 --version). Activate an environment with one of these. Nothing was changed." >&2; exit 1; }
	@echo "Setting up $(TIMM_GPU_VENV) from requirements/timm-gpu.txt: about 5 GB."
	@test -x $(TIMM_GPU_VENV)/bin/python || python3 -m venv $(TIMM_GPU_VENV)
	@$(TIMM_GPU_VENV)/bin/python -m pip install --disable-pip-version-check -r requirements/timm-gpu.txt
	@touch $@

##@ The paper's FastTD3 and FastSAC-ERA on GPUs (DRY_RUN=1, ARGS="...", TASKS, SEED, AGENT, SLURM; docs/control/recipes.md)
control-humanoidbench: RUN = humanoidbench  ## both agents on 8 tasks of HumanoidBench, 10 seeds (main results)
control-distribution: RUN = distribution  ## truncated and tanh, delta constant and learned (policy distribution)
control-batch: RUN = batch  ## entropy held per state or per batch, beside FastTD3 (batch-level ERA)
control-time: RUN = time  ## time of a step: FastTD3, the same without delay, FastSAC-ERA (time comparison)

$(CONTROL_RUNS):
	@$(call in-checkout,fasttd3/recipes/era/launch.py); $(call split,ARGS); $(call find-gpu-python,fasttd3,$(FASTTD3_GPU_VENV)); \
	$(call make-environment-last,$(FASTTD3_GPU_VENV),7 GB,"$$active" "$$file" $(RUN)); \
	exec env PYTHON="$$python" ENVIRONMENT_TO_COME="$${lacks:+$(DRY)}" "$$active" "$$file" $(RUN) "$${words[@]}"

control-results:  ## table of the runs in OUTPUT (default: output/era of the checkout)
	@$(call in-checkout,fasttd3/recipes/era/results.py); python3 "$$file" $${OUTPUT:+"$$OUTPUT"}

control-smoke: $(VENV_READY)  ## each of these experiments on this CPU, with tiny networks (RUNS="batch ...")
	@$(CPU) apply.py apply fasttd3 --checkouts "$$CHECKOUTS"
	@read -ra names <<< "$$RUNS"; $(CPU) -m tools.smoke.control --checkout "$$CHECKOUTS/fasttd3" --out results/smoke-control "$${names[@]}"

$(FASTTD3_GPU_VENV_READY): requirements/fasttd3-gpu.txt
	@python3 -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' || { echo "error: FastTD3's packages need Python 3.10 to 3.12, the active one is $$(python3 --version). Activate an environment with one of these. Nothing was changed." >&2; exit 1; }
	@echo "Setting up $(FASTTD3_GPU_VENV) from requirements/fasttd3-gpu.txt: about 7 GB."
	@test -x $(FASTTD3_GPU_VENV)/bin/python || python3 -m venv $(FASTTD3_GPU_VENV)
	@$(FASTTD3_GPU_VENV)/bin/python -m pip install --disable-pip-version-check -r requirements/fasttd3-gpu.txt
	@touch $@

##@ Measurements and cleaning
floor-search: $(VENV_READY)  ## smallest entropy of ERA's classifiers over an adversarial search, minus the floor
	@$(CPU) -m tools.searches.entropy_floor

entropy-search: $(VENV_READY)  ## entropy of ERA's Gaussians over an adversarial search, minus the target
	@$(CPU) -m tools.searches.gaussian_entropy

learned-delta: $(VENV_READY)  ## entropy of bounded policies minus the target after training with a learned delta
	@$(CPU) apply.py apply fasttd3 --checkouts "$$CHECKOUTS"
	@$(CPU) -m tools.searches.learned_delta "$$CHECKOUTS/fasttd3"

vision-models: $(VENV_READY)  ## ERA on a model of each timm family, listed with pass or the reason why not
	@$(CPU) apply.py apply timm --checkouts "$$CHECKOUTS"
	@$(CPU) -m tools.searches.timm_families "$$CHECKOUTS/timm" --out docs/vision/models.md

bench-vision: $(VENV_READY)  ## time of ERA in a classifier beside plain cross-entropy
	@$(CPU) apply.py apply timm --checkouts "$$CHECKOUTS"
	@$(CPU) -m tools.bench.vision --checkout "$$CHECKOUTS/timm"

bench-control: $(VENV_READY)  ## time of FastSAC-ERA's updates beside FastTD3's, as ratios, and the activation's share
	@$(CPU) apply.py apply fasttd3 --checkouts "$$CHECKOUTS"
	@mkdir -p results; TORCHINDUCTOR_COMPILE_THREADS=1 $(CPU) -m tools.bench.control --checkout "$$CHECKOUTS/fasttd3" --csv results/bench-control.csv

agreement: $(VENV_READY)  ## how far log-probs and gradients of ERA's code paths lie apart
	@$(CPU) apply.py apply verl --checkouts "$$CHECKOUTS"
	@$(CPU) tests/llm/agreement.py "$$CHECKOUTS/verl"

bench: $(VENV_READY)  ## time and memory of the log-probs with and without ERA, as ratios
	@$(CPU) apply.py apply verl --checkouts "$$CHECKOUTS"
	@$(CPU) -m tools.bench.logprobs --checkout "$$CHECKOUTS/verl"

bench-actor: $(VENV_READY)  ## time and memory of the actor's two passes: GRPO, ERA, the release's way
	@$(CPU) apply.py apply verl --checkouts "$$CHECKOUTS"
	@$(CPU) -m tools.bench.actor --checkout "$$CHECKOUTS/verl"

bench-ledger: $(VENV_READY)  ## time and memory of collecting and reporting a full grid of made-up results
	@$(CPU) -m tools.bench.ledger

bench-engine: $(VENV_READY)  ## time of apply.py's verbs
	@$(CPU) -m tools.bench.engine

clean:  ## remove virtual environments and results; checkouts stay
	rm -rf .venv results
