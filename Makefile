# make demo    the real verl trainer on this machine's CPU: GRPO and ERA side by side
# make test    lint and tests
# make help    all targets, from the lines below that begin with ##, and the names of the paper's runs

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules
.PRECIOUS: %/installed

# The user's variables reach the recipes through the environment, as "$$NAME": unexpanded, whatever they contain. Those of
# the command line are all taken so, because make would expand them for the recipes' environment; of the environment's,
# which make passes on as they are, the ones that this file reads itself.
GIVEN := HOME CHECKOUTS VERL TRL TIMM FASTTD3 RAY_DATA_HOME DATA RESULTS SEED STEPS
unexpanded = $(eval override $(1) := $$(value $(1)))$(eval export $(1))
$(foreach name,$(GIVEN),$(if $(filter environment,$(origin $(name))),$(call unexpanded,$(name))))
$(foreach name,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(name)))),$(call unexpanded,$(name))))
VERL ?= 0.4.1
TRL ?= 1.16.0
TIMM ?= 1.0.20
FASTTD3 ?= 2d83b6a
CHECKOUTS ?= checkouts
RAY_DATA_HOME ?= $(HOME)/verl
DATA ?= $(RAY_DATA_HOME)/data
ENVIRONMENTS := .venv
# It stands in shell commands and in names of targets.
$(if $(strip $(foreach odd,$$ ` ; & | < > " ' \ *,$(findstring $(odd),$(ENVIRONMENTS))) $(filter-out 1,$(words \
	$(ENVIRONMENTS)))),$(error ENVIRONMENTS must be a folder without spaces, quotes and other signs of the shell))
export VERL TRL TIMM FASTTD3 CHECKOUTS RAY_DATA_HOME DATA ENVIRONMENTS MAKE

# What the user's shell adds to Python's path is not part of these environments.
CLEAN := env -u PYTHONPATH -u PYTHONHOME
CPU := $(CLEAN) $(ENVIRONMENTS)/cpu/bin/python
DOCS := $(CLEAN) $(ENVIRONMENTS)/docs/bin/python
RUFF := $(CLEAN) $(ENVIRONMENTS)/lint/bin/python -m ruff
MYPY := $(CLEAN) $(ENVIRONMENTS)/lint/bin/python -m mypy
CONTROL := $(CLEAN) $(ENVIRONMENTS)/control-cpu/bin/python
VERL_09 := $(CLEAN) $(ENVIRONMENTS)/verl-0.9-cpu/bin/python
TRL_CPU := $(CLEAN) $(ENVIRONMENTS)/trl-cpu/bin/python
AXOLOTL := $(CLEAN) $(ENVIRONMENTS)/axolotl-cpu/bin/python
VLLM_CPU := $(CLEAN) $(ENVIRONMENTS)/vllm-cpu/bin/python
VERL_GPU := $(CLEAN) $(ENVIRONMENTS)/verl-gpu/bin/python
VERL_SOURCES := $(ENVIRONMENTS)/verl-sources
TIMM_SOURCES := $(ENVIRONMENTS)/timm-sources
ready = $(ENVIRONMENTS)/$(1)/installed

# What each version needs, and the folder of its checkout. A folder of checkouts holds only one timm and one FastTD3, so
# other versions than the default ones have a folder of their own.
override VERL_0.4.1 := patched-verl
override VERL_0.9.1 := $(call ready,verl-0.9-cpu) $(VERL_SOURCES)/installed
override TIMM_1.0.20 := "$$CHECKOUTS"
override TIMM_1.0.28 := "$$CHECKOUTS/v1.0.28"
override FASTTD3_2d83b6a := "$$CHECKOUTS"
override FASTTD3_229ed59 := "$$CHECKOUTS/229ed59"
READY_VERL := $(if $(filter 0.4.1 0.9.1,$(VERL)),$(VERL_$(VERL)),unknown-VERL)
READY_TIMM := $(if $(filter 1.0.20 1.0.28,$(TIMM)),patched-timm,unknown-TIMM)
READY_FASTTD3 := $(if $(filter 2d83b6a 229ed59,$(FASTTD3)),patched-fasttd3,unknown-FASTTD3)
TIMM_CHECKOUT := $(TIMM_$(TIMM))/timm
FASTTD3_CHECKOUT := $(FASTTD3_$(FASTTD3))/fasttd3

.PHONY: help demo demo-trl demo-vision demo-control report apply status diff revert drift llm-smoke vision-smoke \
	control-smoke rivals rivals-llm-hold rivals-trl rivals-control lint format docs test \
	test-all test-sources test-grids test-verl-0.9 test-trl test-axolotl test-timm test-timm-1.0.28 test-fasttd3-229ed59 test-control test-pins \
	test-release rehearse-llm rehearse-vllm rehearse-slurm timm-own-tests gpu-check \
	floor-search entropy-search log-prob-search vision-models bench bench-actor bench-gpu bench-trl \
	bench-megatron clean given-python patched-verl patched-timm patched-fasttd3

##@ Start here (the first downloads 0.6 GB and fills 2.2 GB of disk; without TORCH=cpu 3.4 and 6.7 GB)
##   make demo TORCH=cpu: GRPO beside ERA in verl's trainer, on this CPU, in four minutes
##   make demo-vision: timm's ResNet with and without ERA, in one minute
##   make test TORCH=cpu: lint and the fast tests, five minutes

##@ On this machine's CPU (PYTHON=, ENVIRONMENTS=: the Python and the folder of the environments)
## demo: GRPO beside ERA in verl's trainer (VERL=0.9.1, SEED, STEPS, TASK, FRESH=1)
demo: $(READY_VERL)
	@$(if $(filter 0.9.1,$(VERL)),$(VERL_09),$(CPU)) $(DEMO) $${FRESH:+--fresh}
demo: DEMO = -m demo.llm --verl "$$VERL" --seed "$${SEED:-2}" --steps "$${STEPS:-150}" $${TASK:+--task "$$TASK"} \
	--checkout $(if $(filter 0.9.1,$(VERL)),$(VERL_SOURCES)/verl-0.9.1,"$$CHECKOUTS/verl")
## demo-trl: SmolLM2-135M in TRL: GRPO, ERA, TRL's bonus (SEED, STEPS, TASK, FRESH=1)
demo-trl: $(call ready,trl-cpu)
	@$(TRL_CPU) $(DEMO) $${FRESH:+--fresh}
demo-trl: DEMO = -m demo.trl $${SEED:+--seed "$$SEED"} $${STEPS:+--steps "$$STEPS"} $${TASK:+--task "$$TASK"}
## demo-vision: timm's ResNet with and without ERA (TIMM=1.0.28, SEED="1 2", EPOCHS)
demo-vision: $(READY_TIMM)
	@$(CPU) $(DEMO) $${FRESH:+--fresh}
demo-vision: DEMO = -m demo.vision --checkout $(TIMM_CHECKOUT) --out results/demo-vision$(patsubst -1.0.20,,-$(TIMM)) \
	$${SEED:+--seeds $$SEED} $${EPOCHS:+--epochs "$$EPOCHS"}
## demo-control: FastTD3 beside FastSAC-ERA on HalfCheetah (FASTTD3=229ed59, SEED, STEPS)
demo-control: $(READY_FASTTD3)
	@$(CPU) $(DEMO) $${FRESH:+--fresh}
demo-control: DEMO = -m demo.control --checkout $(FASTTD3_CHECKOUT) \
	--out results/demo-control$(patsubst -2d83b6a,,-$(FASTTD3)) $${SEED:+--seeds $$SEED} $${STEPS:+--steps "$$STEPS"}
# A demo's arguments are checked before the long installation.
demo demo-trl demo-vision demo-control: CHECK = $(DEMO) --check
## report: the paper's tables and figures, ours beside them (FOLDERS="copied/a ...")
report: $(call ready,cpu)
	@read -ra folders <<< "$$FOLDERS"; $(CPU) reproduce.py report "$${folders[@]}"

##@ Patched checkouts in checkouts/ (python3 apply.py --help says more)
## apply, revert, status, diff: put our patches on all upstreams; take them off; what there is
apply status diff revert:
	@python3 apply.py $@ --checkouts "$$CHECKOUTS"
## drift: newer releases of all hosts; ERA started on patched ones (docs/engine/drift.md)
drift: $(call ready,cpu)
	@$(CPU) -m tools.drift

##@ The paper's runs (DRY_RUN=1 prints commands, CHECK_ONLY=1 names what is missing, ARGS="...")
## llm-model, llm-data: their models and data (MODEL, SETS="train math ood", DATA=~/verl/data)
## llm-merge, llm-eval: model, scores (CKPT, MODEL_PATH, SETS, OUT, EVAL, PROTOCOL); llm-grade: again
## llm-RUN: on 32 GPUs (docs/llm/recipes.md); RUN is one of
## vision-RUN: on 4 GPUs (SEED, GPUS, DATA_DIR, H0, AUG, EPOCHS; docs/vision/recipes.md)
## control-RUN: on GPUs or cores (TASKS, SEED, AGENT, JOBS; docs/control/recipes.md)
llm-%:
	@exec $(SHELL) recipes/paper.sh $@
vision-%:
	@exec $(SHELL) recipes/paper.sh $@
control-%:
	@exec $(SHELL) recipes/paper.sh $@
## vision-results, control-results: a table of the runs in OUTPUT
## llm-smoke: every run, tiny, on this CPU (SCRIPTS); vision-smoke, control-smoke (RUNS)
llm-smoke vision-smoke control-smoke: $(call ready,cpu)
	@$(CPU) -m pytest -q -rfE -m smoke tests/$(@:%-smoke=%)

##@ ERA beside what people use instead, on CPU cores (TASKS, SEED, ARMS, DRY_RUN=1, OUTPUT, JOBS; docs/rivals/)
# all of these, one after the other: days of two cores
rivals: rivals-llm-hold rivals-trl rivals-control
## rivals, rivals-llm-hold: all, for days; in verl: what holds ERA's bound; 225 runs
rivals-llm-hold: patched-verl
	@$(CPU) -m rivals.launch llm-hold
## rivals-trl: the same in TRL, SmolLM2-135M; 140 runs
rivals-trl: $(call ready,trl-cpu)
	@$(TRL_CPU) -m rivals.launch trl
## rivals-control: PPO with low noise, mis-set targets, EAPO; SAC's alpha
rivals-control: control-ppo control-ppo-targets control-eapo-3m control-alpha

##@ Tests
## lint, format: ruff's checks, mypy's of era/, without torch; what ruff can fix
lint: $(call ready,lint)
	@$(RUFF) check . && $(RUFF) format --check . || { echo \
		"error: ruff rejects the files above, so no test was run. 'make format' fixes their layout and all that ruff" \
		"can fix by itself; fix the rest by hand." >&2; exit 1; }
	@$(MYPY) || { echo "error: mypy rejects the types above, so no test was run." >&2; exit 1; }
format: $(call ready,lint)
	@$(RUFF) check --fix .; status=$$?; $(RUFF) format . && exit $$status
# Two test files at a time, in the order of their names, so that long ones do not come last. For each of the two, torch
# would start as many threads as there are cores, and inductor a pool of compilers.
TESTS := env OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=1 $(CPU) -m pytest -q -n 2 --no-loadscope-reorder \
	--disable-warnings
FAST := not slow and not grid and not search and not smoke and not rehearsal
## test: lint, and the fast tests: five minutes (PYTEST_ADDOPTS=-rs names what is skipped)
test: lint $(call ready,cpu)
	@$(TESTS) tests --dist loadfile -m "$(FAST)"
## test-all: these, whole trainings and demos (twelve minutes)
test-all: lint $(call ready,cpu)
	@$(TESTS) tests --dist loadfile -m "not grid and not search and not rehearsal and (slow or not smoke)"
## test-sources: the fast tests on upstreams, from packages, as without a git server
test-sources: $(call ready,cpu)
	@cache=$$(mktemp -d); trap 'rm -rf "$$cache"' EXIT; export XDG_CACHE_HOME="$$cache"; \
		GIT_CONFIG_GLOBAL="$$PWD/.ci/gitconfig-without-servers" $(TESTS) tests --dist loadfile -m "upstream and $(FAST)"
## test-grids: grids of real trainings (killed, resumed, in Slurm), benchmarks
test-grids: $(call ready,cpu)
	@$(CPU) -m pytest -q tests -m grid
## test-verl-0.9: era.verl with verl 0.9.0 and 0.9.1
test-verl-0.9: $(VERL_0.9.1)
	@VERL_SOURCES=$(VERL_SOURCES) $(VERL_09) -m pytest -q tests/llm/current
	@$(CLEAN) PYTHONPATH=$(VERL_SOURCES)/verl-0.9.1 $(ENVIRONMENTS)/verl-0.9-cpu/bin/python -m pytest -q tests/test_readme.py
## test-trl: era.trl (TRL=1.10.0: with that one); test-axolotl: era.axolotl, with Python 3.12
test-trl: $(call ready,trl-cpu)
	@folder=$(ENVIRONMENTS)/"trl-$$TRL"; [[ "$$TRL" == 1.16.0 || -e "$$folder" ]] || $(TRL_CPU) -m pip install -q \
		--disable-pip-version-check --no-deps --target "$$folder" "trl==$$TRL" || exit 1; \
		PYTHONPATH="$$PWD/$$folder" env -u PYTHONHOME $(ENVIRONMENTS)/trl-cpu/bin/python -m pytest -q tests/llm/with_trl tests/test_readme.py
test-axolotl: $(call ready,axolotl-cpu)
	@$(AXOLOTL) -m pytest -q tests/llm/with_axolotl
## test-timm: era.timm with timm 1.0.20, 1.0.28 and 1.0.31
test-timm: $(TIMM_SOURCES)/installed
	@for source in $(TIMM_SOURCES)/timm-*/; do echo "$$source"; env -u PYTHONHOME PYTHONPATH="$$PWD/$$source" \
		$(ENVIRONMENTS)/cpu/bin/python -m pytest -q -m "not search and not rehearsal" tests/vision/current \
		tests/vision/test_models.py tests/test_readme.py || exit 1; done
## test-control: era.stable_baselines3, era.sbx, era.rsl_rl, TD-MPC2; test-pins: other releases
test-control: $(call ready,control-cpu)
	@$(CONTROL) -m pytest -q tests/control/plugins tests/control/tdmpc2 tests/test_readme.py
# Each line of the file is a package in front of the environment's, and the tests that run with it.
test-pins: $(call ready,control-cpu)
	@while read -r pin tests; do folder=$(ENVIRONMENTS)/pins/$$pin; echo "$$pin"; \
		[[ -e "$$folder" ]] || $(CONTROL) -m pip install -q --disable-pip-version-check --no-deps --target "$$folder" \
		$${pin//,/ } || exit 1; PYTHONPATH="$$PWD/$$folder" env -u PYTHONHOME $(ENVIRONMENTS)/control-cpu/bin/python \
		-m pytest -q $$(printf 'tests/%s ' $$tests) < /dev/null || exit 1; \
		done < requirements/control-pins.txt
## test-timm-1.0.28: scripts, models, demo on that; likewise test-fasttd3-229ed59
test-timm-1.0.28: $(call ready,cpu)
	@TIMM=1.0.28 $(TESTS) --dist loadfile tests/vision/test_models.py tests/vision/test_timm_scripts.py \
		tests/vision/test_vision_demo.py
test-fasttd3-229ed59: $(call ready,cpu)
	@FASTTD3=229ed59 $(TESTS) --dist loadfile $(addprefix tests/control/test_,training_scripts.py fastsac_era_actor.py \
		run_log.py control_commands.py control_demo.py control_runs.py)
## test-release: prompts and grader of the authors' release, which has an environment of its own
test-release: $(call ready,cpu) $(call ready,era-release)
	@ERA_RELEASE_PYTHON="$$(realpath -s $(ENVIRONMENTS)/era-release/bin/python)" $(CPU) -m pytest -q tests/llm/test_release.py
## rehearse-llm: LLM runs up to their weights, on a CPU; rehearse-vllm, rehearse-slurm likewise
rehearse-llm: $(ENVIRONMENTS)/verl-gpu/packages
	@python3 apply.py apply verl --source git --checkouts "$$CHECKOUTS"
	@read -ra scripts <<< "$$SCRIPTS"; $(VERL_GPU) -m tools.rehearse_llm --checkout "$$CHECKOUTS/verl" "$${scripts[@]}"
# evaluation, era.trl and era.verl with the real vLLM on a CPU
rehearse-vllm: $(call ready,vllm-cpu)
	@$(VLLM_CPU) -m pytest -q tests/rehearsal/vllm -m rehearsal
# a Slurm with two nodes on this machine, as root, with Debian's slurm-wlm
rehearse-slurm: $(call ready,cpu)
	@$(CPU) -m pytest -q tests/rehearsal/slurm -m rehearsal
## timm-own-tests: timm's tests, patched beside unpatched (TIMM=1.0.28)
timm-own-tests: $(READY_TIMM)
	@$(CPU) -m tools.timm_tests $(TIMM_CHECKOUT)

##@ Searches and measurements
SEARCH := --hypothesis-profile search --hypothesis-show-statistics
## floor-search: entropies below the minimum; also entropy-search, log-prob-search
floor-search: $(call ready,cpu)
	@$(CPU) -m pytest -q tests/vision/test_activation.py -k below_the_floor $(SEARCH)
entropy-search: $(call ready,cpu)
	@$(CPU) -m pytest -q tests/control/test_continuous_era.py -k at_least_the_target $(SEARCH)
log-prob-search: $(call ready,cpu)
	@$(CPU) -m pytest -q tests/llm/test_log_probs.py -m search
## vision-models: ERA on one model of each timm family (docs/vision/timm.md)
vision-models: $(call ready,cpu)
	@$(CPU) -m pytest -q tests/vision/test_models.py -k test_family
## bench, bench-megatron, bench-actor: time, memory of log-probs; in Megatron; of the actor (VERL=0.9.1)
## bench-gpu: the same on a GPU, after the errors of the kernels there (OUTPUT; SHORT=1)
bench: patched-verl
	@$(CPU) -m tools.bench.logprobs --checkout "$$CHECKOUTS/verl"
bench-actor: $(READY_VERL)
	@$(if $(filter 0.9.1,$(VERL)),$(CLEAN) PYTHONPATH=$(VERL_SOURCES)/verl-0.9.1 $(ENVIRONMENTS)/verl-0.9-cpu/bin/python \
		-m tools.bench.actor,$(CPU) -m tools.bench.actor --checkout "$$CHECKOUTS/verl")
bench-megatron: $(VERL_0.9.1)
	@mkdir -p results; $(CLEAN) PYTHONPATH=$(VERL_SOURCES)/verl-0.9.1 $(ENVIRONMENTS)/verl-0.9-cpu/bin/python \
		-W ignore -m tools.bench.megatron --csv results/bench-megatron.csv
bench-gpu: $(call ready,verl-gpu)
	@python3 apply.py apply verl --checkouts "$$CHECKOUTS"
	@mkdir -p "$${OUTPUT:-results}"
	@$(CLEAN) PYTHONPATH=. $(ENVIRONMENTS)/verl-gpu/bin/python tests/llm/log_prob_rows.py --device cuda \
		$${SHORT:+--seconds 20}
	@$(VERL_GPU) -m tools.bench.logprobs --checkout "$$CHECKOUTS/verl" --device cuda $${SHORT:+--tokens 8192 --turns 1} \
		--csv "$${OUTPUT:-results}/bench-gpu-logprobs.csv"
	@$(VERL_GPU) -m tools.bench.actor --checkout "$$CHECKOUTS/verl" --tokens 8192 --turns 3 \
		--csv "$${OUTPUT:-results}/bench-gpu-actor.csv"
## bench-trl: time and memory of TRL's passes and step
bench-trl: $(call ready,trl-cpu)
	@mkdir -p results; $(TRL_CPU) -m tools.bench.trl --csv results/bench-trl.csv
## gpu-check: ten minutes on a GPU: kernels, vLLM with ERA, FastSAC-ERA, timm; a report (PARTS)
gpu-check:
	@exec $(SHELL) tools/gpu_check.sh
# Docstrings are read, not imported, so it needs no framework.
## docs: the site of the pages, in site/; clean: removes environments (RESULTS=1: results/)
docs: $(call ready,docs)
	@$(DOCS) -m tools.site
clean:
	rm -rf $(ENVIRONMENTS)$(if $(filter-out 0,$(RESULTS)), results)

# --------------------------------------------------------------------------------- what the targets above need

help:
	@awk 'BEGIN { FS = ": "; width = 22 } \
		/^##@ / { print substr($$0, 5) } \
		/^## / { text = substr($$0, length($$1) + 3); printf "  %-" width "s  %s\n", substr($$1, 4), text } \
		/^## [a-z]+-RUN: / { fflush(); system("$(SHELL) recipes/paper.sh runs " substr($$1, 4, index($$1, "-") - 4) \
			" | xargs | fold -sw 71 | sed \"s/^/" sprintf("%" width + 4 "s", "") "/\"") }' $(firstword $(MAKEFILE_LIST))

.DEFAULT:
	@echo "error: there is no target $@. 'make help' lists them." >&2; exit 2

# An environment is set up again when its requirements have changed, or when its Python is gone (after a system upgrade,
# say). Dates decide nothing, so that several clones may share ENVIRONMENTS.
$(ENVIRONMENTS)/%/installed: | requirements/%.txt
	@$(SHELL) requirements/environment.sh $* $@ $(CHECK)
$(ENVIRONMENTS)/%/packages: | requirements/%.txt
	@$(SHELL) requirements/environment.sh $* $@
$(shell $(SHELL) requirements/environment.sh changed $(ENVIRONMENTS)): FORCE
FORCE:
WITH_TORCH_APART := cpu control-cpu verl-0.9-cpu trl-cpu axolotl-cpu vllm-cpu
$(foreach name,$(WITH_TORCH_APART),$(eval $(call ready,$(name)): | given-torch-$(name)))
$(call ready,cpu): | given-python

given-python:
	@[[ -z "$$PYTHON" || ! -e $(call ready,cpu) ]] || echo "PYTHON=$$PYTHON is not used here: $(ENVIRONMENTS)/cpu has a" \
		"Python already. To set it up with another one, remove it first: rm -r $(ENVIRONMENTS)/cpu" >&2

given-torch-%:
	@[[ -z "$$TORCH" || ! -e $(call ready,$*) ]] || ! ls -d $(ENVIRONMENTS)/$*/lib/python*/site-packages/nvidia > \
		/dev/null 2>&1 || echo "TORCH=$$TORCH is not used here: $(ENVIRONMENTS)/$* has PyTorch with CUDA already. To set it" \
		"up anew, remove it first: rm -r $(ENVIRONMENTS)/$*" >&2

$(VERL_SOURCES)/installed: | $(call ready,verl-0.9-cpu)
	@$(SHELL) requirements/environment.sh verl-sources $@ $(ENVIRONMENTS)/verl-0.9-cpu/bin/python
$(TIMM_SOURCES)/installed: | $(call ready,cpu)
	@$(SHELL) requirements/environment.sh timm-sources $@ $(ENVIRONMENTS)/cpu/bin/python

patched-verl: WHERE = --checkouts "$$CHECKOUTS"
patched-timm: WHERE = --version "v$$TIMM" --checkouts $(TIMM_$(TIMM))
patched-fasttd3: WHERE = --version "$$FASTTD3" --checkouts $(FASTTD3_$(FASTTD3))
patched-verl patched-timm patched-fasttd3: $(call ready,cpu)
	@$(CPU) apply.py apply $(@:patched-%=%) $(WHERE) || { code=$$?; [[ $$code -ne 6 ]] || echo \
		"No package index has $(@:patched-%=%), so this needs git access to the address above, or a clone in place of it:" \
		"git config --global url.<the clone>.insteadOf <the address> (docs/engine/usage.md)." >&2; exit $$code; }

unknown-VERL: KNOWN := verl 0.4.1 and 0.9.1
unknown-TIMM: KNOWN := timm 1.0.20 and 1.0.28
unknown-FASTTD3: KNOWN := FastTD3 2d83b6a and 229ed59
unknown-%:
	@echo "error: $*=$$$*: this runs with $(KNOWN)." >&2; exit 1
