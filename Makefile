# make demo          the real verl trainer on this machine's CPU: GRPO and ERA side by side (SEED, STEPS, TASK, VERL)
# make test          lint and every contract once; make test-all adds the slow tests
# make apply         patched upstream checkouts in checkouts/
# make llm-stage1    the paper's stage 1 on GPUs (DRY_RUN=1 prints the command); likewise llm-... for its other runs
# make vision-cifar10-aug-era    one of the paper's classifiers on GPUs; likewise vision-...
# make control-humanoidbench    the paper's FastTD3 and FastSAC-ERA on GPUs; likewise control-...
# make help          all targets

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The user's variables reach the recipes through the environment, as "$$NAME": unexpanded, whatever they contain.
GIVEN := PYTHON CHECKOUTS VERL TIMM SEED STEPS TASK SCRIPTS RAY_DATA_HOME DATA SETS CKPT MODEL_PATH OUT EVAL ARGS EPOCHS \
	RUNS DATA_DIR OUTPUT H0 TASKS AGENT JOBS FOLDERS FASTTD3
$(foreach name,$(GIVEN),$(if $(filter-out undefined,$(origin $(name))), \
	$(eval override $(name) := $$(value $(name)))$(eval export $(name))))
VERL ?= 0.4.1
TIMM ?= 1.0.20
FASTTD3 ?= 2d83b6a
TASK ?= chain
CHECKOUTS ?= checkouts
RAY_DATA_HOME ?= $(HOME)/verl
DATA ?= $(RAY_DATA_HOME)/data
export VERL TIMM FASTTD3 TASK CHECKOUTS RAY_DATA_HOME DATA MAKE

VENV := .venv/cpu
GPU_VENV := .venv/verl-gpu
TIMM_GPU_VENV := .venv/timm-gpu
FASTTD3_GPU_VENV := .venv/fasttd3-gpu
VERL_09_GPU_VENV := .venv/verl-0.9-gpu
VERL_09_VENV := .venv/verl-0.9-cpu
VERL_SOURCES := .venv/verl-sources
TIMM_SOURCES := .venv/timm-sources
VERL_09_READY := $(VERL_09_VENV)/installed
CONTROL_VENV := .venv/control-cpu
CONTROL_READY := $(CONTROL_VENV)/installed
RIVALS_VISION_VENV := .venv/rivals-vision
RIVALS_VISION_READY := $(RIVALS_VISION_VENV)/installed
VENVS := $(VENV) $(VERL_09_VENV) $(CONTROL_VENV) $(RIVALS_VISION_VENV) $(GPU_VENV) $(VERL_09_GPU_VENV) \
	$(TIMM_GPU_VENV) $(FASTTD3_GPU_VENV)
# An environment whose Python is gone (after a system upgrade, say) is set up again.
$(shell for venv in $(VENVS); do test -x $$venv/bin/python || rm -f $$venv/installed; done)
VENV_READY := $(VENV)/installed
# What the user's shell adds to Python's path is not part of this environment.
CLEAN := env -u PYTHONPATH -u PYTHONHOME
CPU := $(CLEAN) $(VENV)/bin/python
VERL_09 := $(CLEAN) $(VERL_09_VENV)/bin/python
CONTROL := $(CLEAN) $(CONTROL_VENV)/bin/python
# Two test files at a time, in the order of their names, so that long ones do not come last. Inductor would start a pool
# of compilers for each.
TESTS := env TORCHINDUCTOR_COMPILE_THREADS=1 $(CPU) -m pytest -q -n 2 --no-loadscope-reorder

# A demo's arguments, and for Ray the path of this project, are checked before the long installation.
CHECK :=
DEMO_LLM = -m demo.llm --verl "$$VERL" --seed "$${SEED:-2}" --steps "$${STEPS:-150}" --task "$$TASK" \
	--checkout $(DEMO_CHECKOUT)
# What the demo and bench-actor need with each VERL.
READY_0.4.1 := patched-verl
READY_0.9.1 := $(VERL_09_READY)
demo: DEMO_CHECKOUT = $(if $(filter 0.9.1,$(VERL)),$(VERL_SOURCES)/verl-0.9.1,"$$CHECKOUTS/verl")
# A checkouts folder has one timm and one FastTD3, so another version than the pinned one has such a folder of its own.
TIMM_CHECKOUTS_1.0.20 := "$$CHECKOUTS"
TIMM_CHECKOUTS_1.0.28 := "$$CHECKOUTS/v1.0.28"
TIMM_CHECKOUTS := $(TIMM_CHECKOUTS_$(TIMM))
TIMM_CHECKOUT := $(TIMM_CHECKOUTS)/timm
READY_TIMM := $(if $(TIMM_CHECKOUTS),patched-timm,another-timm)
DEMO_VISION = -m demo.vision --checkout $(TIMM_CHECKOUT) --out results/demo-vision$(patsubst -1.0.20,,-$(TIMM)) \
	$${SEED:+--seeds $$SEED} $${EPOCHS:+--epochs "$$EPOCHS"}
FASTTD3_CHECKOUTS_2d83b6a := "$$CHECKOUTS"
FASTTD3_CHECKOUTS_229ed59 := "$$CHECKOUTS/229ed59"
FASTTD3_CHECKOUTS := $(FASTTD3_CHECKOUTS_$(FASTTD3))
FASTTD3_CHECKOUT := $(FASTTD3_CHECKOUTS)/fasttd3
READY_FASTTD3 := $(if $(FASTTD3_CHECKOUTS),patched-fasttd3,another-fasttd3)
DEMO_CONTROL = -m demo.control --fasttd3 "$$FASTTD3" --checkout $(FASTTD3_CHECKOUT) \
	--out results/demo-control$(patsubst -2d83b6a,,-$(FASTTD3)) $${SEED:+--seeds $$SEED} $${STEPS:+--steps "$$STEPS"}
demo: CHECK = $(DEMO_LLM) --check
demo-vision: CHECK = $(DEMO_VISION) --check
demo-control: CHECK = $(DEMO_CONTROL) --check
llm-smoke: CHECK = -m demo.llm --check

# Upstream, folder and size on disk of each GPU environment. That of verl 0.9 is a guess: nobody has installed it.
VERL_GPU := verl $(GPU_VENV) "10 GB"
VERL_09_GPU := verl-0.9 $(VERL_09_GPU_VENV) "12 GB"
TIMM_GPU := timm $(TIMM_GPU_VENV) "5 GB"
FASTTD3_GPU := fasttd3 $(FASTTD3_GPU_VENV) "7 GB"
PAPER := exec $(SHELL) make/paper.sh

# Every run of the paper is one line below: `llm-<name>: RUN = <script>  ## ...`, or `vision-<name>` or `control-<name>`
# with an experiment of the recipe's runs.py, or `control-<name>: EXPERIMENT = ` with one of recipes/control.
runs-of = $(shell sed -nE 's/^($(1)-[^:]*): RUN = .*/\1/p' $(firstword $(MAKEFILE_LIST)))
LLM_RUNS := $(call runs-of,llm)
VISION_RUNS := $(call runs-of,vision)
CONTROL_RUNS := $(call runs-of,control)
AGENT_RUNS := $(shell sed -nE 's/^(control-[^:]*): EXPERIMENT = .*/\1/p' $(firstword $(MAKEFILE_LIST)))

.PHONY: help demo demo-vision demo-control report lint test test-all test-engine test-verl-0.9 test-timm test-grids \
	test-timm-1.0.28 timm-own-tests test-fasttd3-229ed59 test-control format apply status diff revert drift \
	$(LLM_RUNS) llm-smoke llm-data llm-merge llm-eval \
	llm-qwen3-8b-era llm-qwen3-8b-era-megatron \
	$(VISION_RUNS) vision-smoke vision-results \
	$(CONTROL_RUNS) control-smoke control-results \
	$(AGENT_RUNS) control-agents-results \
	rivals rivals-llm rivals-vision rivals-control test-rivals \
	agreement bench bench-actor bench-gpu bench-ledger bench-engine bench-vision bench-control bench-ppo bench-plugins \
	floor-search entropy-search log-prob-search learned-delta vision-models clean
.PHONY: given-python another-verl another-timm another-fasttd3 \
	patched-verl patched-timm patched-fasttd3 patched-drl-code-pytorch

##@ The project
help:  ## this list
	@awk 'BEGIN { FS = ":.*## " } \
		/^##@ / { printf "%s%s\n", separator, substr($$0, 5); separator = "\n" } \
		/^[a-z0-9.-]+:.*## / { printf "  %-31s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(VENV_READY): requirements/cpu.txt | given-python
	@$(SHELL) make/environment.sh cpu $(VENV) $< 13 $(CHECK)
	@touch $@

given-python:
	@[[ -z "$$PYTHON" || ! -e $(VENV_READY) ]] || echo "PYTHON=$$PYTHON is not used here: $(VENV) has a Python" \
		"already. To set it up with another one, remove it first: rm -r $(VENV)" >&2

$(VERL_09_READY): requirements/verl-0.9-cpu.txt requirements/verl-0.9-sources.txt
	@$(SHELL) make/environment.sh cpu $(VERL_09_VENV) $< 12 $(CHECK)
	@while read -r source; do $(VERL_09_VENV)/bin/python -m pip download -q --require-hashes --no-deps --no-binary :all: \
		-d $(VERL_SOURCES) -r <(echo "$$source") || exit 1; done < requirements/verl-0.9-sources.txt
	@cd $(VERL_SOURCES) && for archive in verl-*.tar.gz; do tar -xzf $$archive || exit 1; done
	@touch $@

$(CONTROL_READY): requirements/control-cpu.txt
	@$(SHELL) make/environment.sh cpu $(CONTROL_VENV) $< 12 $(CHECK)
	@touch $@

$(RIVALS_VISION_READY): requirements/rivals-vision.txt
	@$(SHELL) make/environment.sh cpu $(RIVALS_VISION_VENV) $< 12 $(CHECK)
	@touch $@

$(TIMM_SOURCES)/installed: requirements/timm-sources.txt $(VENV_READY)
	@while read -r source; do $(CPU) -m pip download -q --require-hashes --no-deps --no-binary :all: \
		-d $(TIMM_SOURCES) -r <(echo "$$source") || exit 1; done < $<
	@cd $(TIMM_SOURCES) && for archive in timm-*.tar.gz; do tar -xzf $$archive || exit 1; done
	@touch $@

patched-verl: $(VENV_READY)
	@$(CPU) apply.py apply verl --checkouts "$$CHECKOUTS"

patched-timm: $(VENV_READY)
	@$(CPU) apply.py apply timm --version "v$$TIMM" --checkouts $(TIMM_CHECKOUTS)

patched-fasttd3: WHERE = --version "$$FASTTD3" --checkouts $(FASTTD3_CHECKOUTS)
patched-drl-code-pytorch: WHERE = --checkouts "$$CHECKOUTS"
patched-fasttd3 patched-drl-code-pytorch: $(VENV_READY)
	@$(CPU) apply.py apply $(@:patched-%=%) $(WHERE) || { code=$$?; [[ $$code -ne 6 ]] || echo \
		"No package index has $(@:patched-%=%), so this needs git access to the address above, or a clone in place of it:" \
		"git config --global url.<the clone>.insteadOf <the address> (docs/engine/usage.md)." >&2; exit $$code; }

demo: $(or $(READY_$(VERL)),another-verl)  ## GRPO beside ERA in verl (VERL=0.9.1, SEED, STEPS, TASK=chain|chain-biased|...)
	@$(if $(filter 0.9.1,$(VERL)),$(VERL_09),$(CPU)) $(DEMO_LLM)

another-verl:
	@echo "error: VERL=$$VERL: this runs with verl 0.4.1 and 0.9.1. Nothing was installed." >&2; exit 1

another-timm:
	@echo "error: TIMM=$$TIMM: this runs with timm 1.0.20 and 1.0.28. Nothing was installed." >&2; exit 1

another-fasttd3:
	@echo "error: FASTTD3=$$FASTTD3: this runs with FastTD3 2d83b6a and 229ed59. Nothing was installed." >&2; exit 1

demo-vision: $(READY_TIMM)  ## timm's train.py on digits, with and without ERA (TIMM=1.0.28, SEED="1 2 3", EPOCHS)
	@$(CPU) $(DEMO_VISION)

demo-control: $(READY_FASTTD3)  ## FastTD3 beside FastSAC-ERA on HalfCheetah (FASTTD3=229ed59, SEED="1 2 3", STEPS)
	@$(CPU) $(DEMO_CONTROL)

report: $(VENV_READY)  ## the paper's tables and figures beside our results (FOLDERS="copied/a copied/b")
	@read -ra folders <<< "$$FOLDERS"; $(CPU) reproduce.py collect "$${folders[@]}"
	@$(CPU) reproduce.py report

lint: $(VENV_READY)  ## ruff's checks of our files
	@$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check . || { echo \
		"error: ruff rejects the files above, so no test was run. 'make format' fixes their layout and all that ruff" \
		"can fix by itself; fix the rest by hand." >&2; exit 1; }

test: lint  ## lint, and every contract on every real upstream once: seven minutes
	@$(TESTS) tests --dist loadfile -m "not slow and not grid and not search and not smoke"

test-all: lint  ## the same and the slow rest: kills, stages of the LLM recipe: twelve minutes
	@$(TESTS) tests --dist loadfile -m "not grid and not search and (slow or not smoke)"

test-grids: $(VENV_READY)  ## grids of real trainings (killed, resumed, in Slurm), benchmarks, a run of the rivals
	@$(CPU) -m pytest -q tests -m grid

test-engine: $(VENV_READY)  ## the engine's long proof: faults, inputs, sequences; counts in results/engine-proof
	@rm -rf results/engine-proof; mkdir -p results/engine-proof
	@ERA_PROOF=long ERA_PROOF_RESULTS=results/engine-proof $(TESTS) tests/engine --dist worksteal; \
		status=$$?; $(CPU) tests/engine/proof/tally.py results/engine-proof; exit $$status

test-verl-0.9: $(VERL_09_READY)  ## era.verl with verl 0.9.0 and 0.9.1, in their own environment
	@VERL_SOURCES=$(VERL_SOURCES) $(VERL_09) -m pytest -q tests/llm/current

test-timm: $(TIMM_SOURCES)/installed  ## era.timm with timm 1.0.20, 1.0.28 and 1.0.31, from their source packages
	@for source in $(TIMM_SOURCES)/timm-*/; do echo "$$source"; env -u PYTHONHOME PYTHONPATH="$$PWD/$$source" \
		$(VENV)/bin/python -m pytest -q tests/vision/current || exit 1; done

test-timm-1.0.28: $(VENV_READY)  ## the tests of timm's scripts, models and demo on v1.0.28
	@TIMM=1.0.28 $(TESTS) --dist loadfile tests/vision/test_models.py tests/vision/test_timm_scripts.py \
		tests/vision/test_vision_demo.py

timm-own-tests: $(READY_TIMM)  ## timm's own tests, patched beside unpatched, outcome by outcome (TIMM=1.0.28)
	@$(CPU) -m tools.timm_tests $(TIMM_CHECKOUT)

test-fasttd3-229ed59: $(VENV_READY)  ## the tests of FastTD3's scripts, actors, recipe and demo on 229ed59, all of them
	@FASTTD3=229ed59 $(TESTS) --dist loadfile $(addprefix tests/control/test_,training_scripts.py fastsac_era_actor.py \
		run_log.py control_commands.py control_demo.py control_results.py control_runs.py)

test-rivals: $(RIVALS_VISION_READY)  ## the runs of rivals-vision, in their environment
	@$(CLEAN) $(RIVALS_VISION_VENV)/bin/python -m pytest -q tests/rivals/test_vision.py

test-control: $(CONTROL_READY)  ## era.stable_baselines3, era.sbx, era.rsl_rl and TD-MPC2, in an environment of their own
	@$(CONTROL) -m pytest -q tests/control/plugins tests/control/tdmpc2

format: $(VENV_READY)  ## fix what lint finds, as far as ruff can
	@$(VENV)/bin/ruff check --fix .; status=$$?; $(VENV)/bin/ruff format . && exit $$status

apply:  ## patched checkouts of all upstreams in checkouts/
	@python3 apply.py apply --checkouts "$$CHECKOUTS"

status:  ## one line about each checkout
	@python3 apply.py status --checkouts "$$CHECKOUTS"

diff:  ## what the overlays change, as git shows it
	@python3 apply.py diff --checkouts "$$CHECKOUTS"

revert:  ## back to the pinned upstreams; refuses if there are local edits
	@python3 apply.py revert --checkouts "$$CHECKOUTS"

drift: $(VENV_READY)  ## ERA started on every newer release of its hosts, as a table in docs/engine/drift.md
	@$(CPU) -m tools.drift

##@ The paper's LLM runs on GPUs (DRY_RUN=1 prints the command, ARGS="trainer.save_freq=5 ..."; docs/llm/recipes.md)
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
llm-release-gate: RUN = run_era_release_gate_qwen2.5_math_7b.sh  ## ERA, the release's gate: advantage > 1 (ablation)

$(LLM_RUNS):
	@$(PAPER) train $(VERL_GPU) recipe/era/$(RUN)

llm-data:  ## the runs' data (SETS="train math ood", DATA=~/verl/data)
	@$(PAPER) data verl $(VENV) "3 GB"

llm-merge:  ## merge a run's checkpoint into a model (CKPT=.../global_step_600, MODEL_PATH=...)
	@$(PAPER) merge $(VERL_GPU)

llm-eval:  ## evaluate a model as the paper does (MODEL_PATH, SETS="aime24", DATA, OUT, EVAL="flags")
	@$(PAPER) evaluate $(VERL_GPU)

llm-smoke: $(VENV_READY)  ## every run script for a few steps on this CPU, with a tiny model (SCRIPTS="run_... ...")
	@$(CPU) -m pytest -q -rfE -m smoke tests/llm/test_scripts.py

##@ A current model on verl 0.9.1, on GPUs (DRY_RUN=1, ARGS; docs/llm/verl-0.9.md)
llm-qwen3-8b-era:  ## GRPO + ERA, Qwen3-8B, FSDP
	@$(PAPER) train $(VERL_09_GPU) recipes/verl-0.9/run_era_qwen3_8b.sh

llm-qwen3-8b-era-megatron:  ## the same with Megatron, without the top-k filter (PYTHON of such an environment)
	@$(PAPER) train verl-0.9 "" "" recipes/verl-0.9/run_era_qwen3_8b_megatron.sh

##@ The paper's image classifiers on GPUs (DRY_RUN=1, ARGS, SEED="42 43", GPUS, DATA_DIR; docs/vision/recipes.md)
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
	@$(PAPER) train $(TIMM_GPU) recipes/era/launch.py $(RUN)

vision-results:  ## table of the runs in OUTPUT (default: output/era of the checkout)
	@$(PAPER) results $(TIMM_GPU)

vision-smoke: $(VENV_READY)  ## each of these runs for one epoch on this CPU, with a tiny model (RUNS="cifar10 ...")
	@$(CPU) -m pytest -q -rfE -m smoke tests/vision/test_vision_runs.py

##@ The paper's FastTD3 and FastSAC-ERA on GPUs (DRY_RUN=1, ARGS, TASKS, SEED, AGENT, SLURM; docs/control/recipes.md)
control-humanoidbench: RUN = humanoidbench  ## both agents on 8 tasks of HumanoidBench, 10 seeds (main results)
control-distribution: RUN = distribution  ## truncated and tanh, delta constant and learned (policy distribution)
control-batch: RUN = batch  ## entropy held per state or per batch, beside FastTD3 (batch-level ERA)
control-time: RUN = time  ## time of a step: FastTD3, FastTD3 without delay, FastSAC-ERA (time comparison)

$(CONTROL_RUNS):
	@$(PAPER) train $(FASTTD3_GPU) recipes/era/launch.py $(RUN)

control-results:  ## table of the runs in OUTPUT (default: output/era of the checkout)
	@$(PAPER) results $(FASTTD3_GPU)

control-smoke: $(VENV_READY)  ## each of these experiments on this CPU, with tiny networks (RUNS="batch ...")
	@$(CPU) -m pytest -q -rfE -m smoke tests/control/test_control_runs.py

##@ The paper's other control agents, on CPU cores (DRY_RUN=1, ARGS, TASKS, SEED, AGENT, JOBS; docs/control/recipes.md)
control-ppo: EXPERIMENT = ppo  ## PPO and PPO-ERA on four tasks of MuJoCo, 5 seeds, and control arms on HalfCheetah
control-llm-techniques: EXPERIMENT = ppo-llm-techniques  ## PPO with clip-higher or selective training, 10 seeds
control-sac-humanoidbench: EXPERIMENT = sac-humanoidbench  ## SAC and SAC-ERA on six tasks of HumanoidBench, 10 seeds
control-sac-dmc: EXPERIMENT = sac-dmc  ## the same on six tasks of DMC, dog and humanoid
control-sac-gym: EXPERIMENT = sac-gym  ## the same on six tasks of MuJoCo Gym
control-sac-targets: EXPERIMENT = sac-targets  ## the same with several entropy targets, and SAC without any
control-sac-standard: EXPERIMENT = sac-standard  ## SAC on HumanoidBench as it is, and as the paper modified it
control-sac-distribution: EXPERIMENT = sac-distribution  ## SAC-ERA: truncated and tanh, delta constant and learned
control-sac-batch: EXPERIMENT = sac-batch  ## SAC-ERA: entropy held per state or per batch, beside SAC
control-tdmpc2: EXPERIMENT = tdmpc2  ## TD-MPC2 and TD-MPC2-ERA on six tasks of DMC, 3 seeds, on GPUs
control-alpha: EXPERIMENT = alpha  ## how well ERA and SAC's alpha hold an entropy: short runs, not in the paper

control-ppo-targets: EXPERIMENT = ppo-targets  ## PPO-ERA with targets that are too low and too high, not in the paper

control-ppo control-ppo-targets control-llm-techniques: HOST := drl-code-pytorch $(VENV)
control-sac-% control-alpha: HOST := "" $(CONTROL_VENV)
control-tdmpc2: HOST := tdmpc2 $(CONTROL_VENV)
$(AGENT_RUNS):
	@exec $(SHELL) make/paper.sh host $(HOST) "" $(EXPERIMENT)

control-agents-results:  ## table of the runs in OUTPUT (default: results/control)
	@python3 recipes/control/results.py $${OUTPUT:+"$$OUTPUT"}

$(GPU_VENV)/installed: GPU = $(VERL_GPU)
$(GPU_VENV)/installed: requirements/verl-gpu.txt requirements/verl-gpu-flash-attn.txt
$(VERL_09_GPU_VENV)/installed: GPU = $(VERL_09_GPU)
$(VERL_09_GPU_VENV)/installed: requirements/verl-0.9-gpu.txt requirements/verl-0.9-gpu-flash-attn.txt
$(TIMM_GPU_VENV)/installed: GPU = $(TIMM_GPU)
$(TIMM_GPU_VENV)/installed: requirements/timm-gpu.txt
$(FASTTD3_GPU_VENV)/installed: GPU = $(FASTTD3_GPU)
$(FASTTD3_GPU_VENV)/installed: requirements/fasttd3-gpu.txt
$(GPU_VENV)/installed $(VERL_09_GPU_VENV)/installed $(TIMM_GPU_VENV)/installed $(FASTTD3_GPU_VENV)/installed:
	@$(SHELL) make/environment.sh $(GPU)
	@touch $@

##@ ERA beside what people use instead, on CPU cores (DRY_RUN=1, OUTPUT, JOBS; docs/rivals/)
rivals: rivals-vision rivals-llm rivals-control  ## all of these, one after the other: days of two cores

rivals-llm: patched-verl  ## in verl's trainer: entropy bonuses, KL, clipping, temperature; 357 runs
	@$(CPU) -m rivals.launch llm

rivals-vision: $(VENV_READY) $(RIVALS_VISION_READY)  ## on digits: label smoothing, confidence penalty, focal loss
	@$(CLEAN) $(RIVALS_VISION_VENV)/bin/python -m rivals.launch vision

rivals-control: control-ppo control-ppo-targets control-alpha  ## PPO with low noise, mis-set targets, SAC's alpha

##@ Measurements and cleaning
floor-search: $(VENV_READY)  ## smallest entropy of ERA's classifiers over an adversarial search, minus the floor
	@$(CPU) -m pytest -q tests/vision/test_activation.py -k no_attack

entropy-search: $(VENV_READY)  ## entropy of ERA's Gaussians over an adversarial search, minus the target
	@$(CPU) -m pytest -q tests/control/test_continuous_era.py -k no_attack

log-prob-search: $(VENV_READY)  ## largest errors of log-probs, entropies and gradients over an adversarial search
	@$(CPU) -m pytest -q tests/llm/test_log_probs.py -m search

learned-delta: $(VENV_READY)  ## entropy of bounded policies minus the target after training with a learned delta
	@$(CPU) -m pytest -q tests/control/test_fastsac_era_actor.py -k closes_the_gap_in_training

vision-models: $(VENV_READY)  ## ERA on one model of each timm family: passes, or the reason why not
	@$(CPU) -m pytest -q tests/vision/test_models.py -k test_family

bench-vision: $(READY_TIMM)  ## time of ERA in a classifier beside plain cross-entropy
	@$(CPU) -m tools.bench.vision --checkout $(TIMM_CHECKOUT)

bench-control: $(READY_FASTTD3)  ## time of FastSAC-ERA's updates beside FastTD3's, as ratios, and the activation's share
	@mkdir -p results; TORCHINDUCTOR_COMPILE_THREADS=1 $(CPU) -m tools.bench.control --checkout $(FASTTD3_CHECKOUT) \
		--csv results/bench-control.csv

bench-ppo: patched-drl-code-pytorch  ## CPU time of a step of PPO and PPO-ERA, as ratios
	@mkdir -p results; $(CPU) -m tools.bench.ppo --checkout "$$CHECKOUTS/drl-code-pytorch" --csv results/bench-ppo.csv

bench-plugins: $(CONTROL_READY)  ## CPU time of ERA's policies beside those of stable-baselines3, sbx and rsl_rl, as ratios
	@mkdir -p results; $(CONTROL) -m tools.bench.plugins --csv results/bench-plugins.csv

agreement: patched-verl  ## how far the log-probs and gradients of ERA's code paths differ
	@$(CPU) tests/llm/agreement.py "$$CHECKOUTS/verl"

bench: patched-verl  ## time and memory of the log-probs with and without ERA, as ratios
	@$(CPU) -m tools.bench.logprobs --checkout "$$CHECKOUTS/verl"

bench-actor: $(or $(READY_$(VERL)),another-verl)  ## time and memory of the actor's two passes as ratios (VERL=0.9.1)
	@$(if $(filter 0.9.1,$(VERL)),$(CLEAN) PYTHONPATH=$(VERL_SOURCES)/verl-0.9.1 $(VERL_09_VENV)/bin/python \
		-m tools.bench.worker,$(CPU) -m tools.bench.actor --checkout "$$CHECKOUTS/verl")

bench-gpu: $(GPU_VENV)/installed  ## on a GPU: the log-probs' kernels checked, timed beside others', and the actor's passes
	@python3 apply.py apply verl --checkouts "$$CHECKOUTS"
	@mkdir -p results; $(CLEAN) $(GPU_VENV)/bin/python -m tools.bench.gpu_logprobs --checkout "$$CHECKOUTS/verl" \
		--csv results/bench-gpu-logprobs.csv
	@$(CLEAN) $(GPU_VENV)/bin/python -m tools.bench.actor --checkout "$$CHECKOUTS/verl" --tokens 8192 --turns 3 \
		--csv results/bench-gpu-actor.csv

bench-ledger: $(VENV_READY)  ## time and memory of collecting and reporting a full grid of made-up results
	@$(CPU) -m tools.bench.ledger

bench-engine: $(VENV_READY)  ## time of apply.py's verbs
	@$(CPU) -m tools.bench.engine

clean:  ## remove virtual environments and results; checkouts stay
	rm -rf .venv results
