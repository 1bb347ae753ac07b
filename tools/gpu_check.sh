#!/usr/bin/env bash
# What only a GPU can show, by the commands that are there, on one card: `make gpu-check`, or PARTS="kernels llm" of it.
# Each part writes results/gpu-check/PART.txt; report.txt has the machine, the ends of all parts, and what failed. What an
# earlier check left is removed. A part has passed if it has trained, even if its time was over before its end; one that
# has not hangs. Setting up environments, model and data comes before that.
set -uo pipefail
unset DRY_RUN CHECK_ONLY RAY_ADDRESS SLURM
out=results/gpu-check
mkdir -p "$out"
fail() { echo "error: $*" >&2; exit 1; }
read -ra parts <<< "${PARTS:-kernels llm control vision}"
for name in "${parts[@]}"; do
    [[ "$name" == @(kernels|llm|control|vision) ]] || fail "PARTS=$PARTS: there are kernels, llm, control and vision."
done

# A 1.5B model on one card: 25 GB of weights, gradients and Adam's moments in fp32, 19 GB of logits and their gradient,
# and what vLLM keeps. The kernels are measured at the size of that.
IFS=, read -r card capability memory <<< "$(nvidia-smi --query-gpu=name,compute_cap,memory.total \
    --format=csv,noheader,nounits 2> /dev/null)"
[[ -n "$card" ]] || fail "nvidia-smi names no GPU here, and this check is for one."
[[ ! "$capability" =~ ([0-9]+)\. ]] || ((BASH_REMATCH[1] < 10)) || fail "$card has compute capability${capability}, and" \
    "torch 2.6.0 of requirements/*-gpu.txt has kernels up to 9.0 (Hopper): use an A100, H100, H200, L40 or the like."
[[ ! "${parts[*]}" =~ kernels|llm || ! "$memory" =~ ^\ *[0-9]+$ ]] || ((memory > 78000)) || fail "$card has${memory} MiB," \
    "and the parts kernels and llm need 80 GB. The others do without: make gpu-check PARTS=\"control vision\""

# prepare PART: sets up what the part needs.
prepare() {
    case $1 in
        kernels) "$MAKE" -s "$ENVIRONMENTS/verl-gpu/installed" ;;
        llm) "$MAKE" -s "$ENVIRONMENTS/verl-gpu/installed" && python3 apply.py apply verl --source git --checkouts "$CHECKOUTS" &&
            "$MAKE" -s llm-model MODEL=Qwen2.5-Math-1.5B && "$MAKE" -s llm-data SETS="math-3to5 aime-2024" ;;
        control) "$MAKE" -s "$ENVIRONMENTS/fasttd3-gpu/installed" &&
            python3 apply.py apply fasttd3 humanoid-bench --checkouts "$CHECKOUTS" ;;
        vision) "$MAKE" -s "$ENVIRONMENTS/timm-gpu/installed" &&
            python3 apply.py apply timm --source git --checkouts "$CHECKOUTS" &&
            "$ENVIRONMENTS/timm-gpu/bin/python" -c 'import sys; from torchvision.datasets import CIFAR10
CIFAR10(sys.argv[1], download=True)' "$CHECKOUTS/data" ;;
    esac
}

# part PART: runs it. llm: GRPO + ERA with vLLM, five steps of the paper's 1.5B run with a smaller batch.
part() {
    local small="data.train_batch_size=32 data.gen_batch_size=32 actor_rollout_ref.actor.ppo_mini_batch_size=32"
    small+=" data.max_response_length=1024 actor_rollout_ref.rollout.tensor_model_parallel_size=1"
    small+=" actor_rollout_ref.rollout.gpu_memory_utilization=0.5 algorithm.filter_groups.enable=False"
    small+=" trainer.val_before_train=False trainer.test_freq=-1 trainer.save_freq=-1"
    case $1 in
        kernels) timeout -k 30 240 "$MAKE" bench-gpu SHORT=1 OUTPUT="$out/kernels" ;;
        llm) timeout -k 30 300 "$MAKE" llm-era-1.5b NNODES=1 GPUS_PER_NODE=1 TOTAL_STEPS=5 \
            CKPTS_DIR="$PWD/$out/llm" LOGGER="[console,file]" ARGS="$small" ;;
        control) timeout -k 30 120 "$MAKE" control-time TASKS=h1hand-walk-v0 AGENT=fastsac_era SEED=1 OUTPUT="$out/control" ;;
        vision) timeout -k 30 120 "$MAKE" vision-cifar10-era SEED=42 GPUS=1 EPOCHS=1 OUTPUT="$out/vision" ;;
    esac
}

# count PART: sets `done` to what the part has done by its own record, and `least` to what shows that it works. The second
# step of a language model is the first that generates with trained weights.
count() {
    local files header=1
    case $1 in
        kernels) files=$out/kernels/bench-gpu-actor.csv least=1 what="rows of the actor's benchmark" ;;
        llm) files=$out/llm/metrics.jsonl least=2 what="training steps" header=0 ;;
        control) files=$out/control/time/*/train.csv least=1 what="rows of 100 steps" ;;
        vision) files=$out/vision/*/summary.csv least=1 what="epochs" ;;
    esac
    done=$(awk -v header=$header 'FNR > header' $files 2> /dev/null | wc -l)
}

failed=0 summary=
for name in "${parts[@]}"; do
    rm -rf "${out:?}/$name"
    echo "$name: preparing; what it prints goes to $out/$name.txt"
    if prepare "$name" > "$out/$name.txt" 2>&1; then
        echo "$name: running"
        begun=$SECONDS
        part "$name" >> "$out/$name.txt" 2>&1
        code=$?
        count "$name"
        said="$done $what, exit code $code, $((SECONDS - begun)) s"
        if ((code != 0 && code != 124 && code != 137)); then
            said="failed: $said" failed=1
        elif ((done < least)); then
            said="failed, at least $least expected: $said" failed=1
        else
            said="passed: $said"
        fi
    else
        said="could not be prepared" failed=1
    fi
    echo "$name: $said"
    summary+="$name: $said"$'\n'
done
{
    nvidia-smi
    git log -1 --format='commit %H'
    echo "$summary"
    for name in "${parts[@]}"; do printf '\n===== %s\n' "$name"; tail -n 60 "$out/$name.txt"; done
} > "$out/report.txt"
echo "The report to send: $out/report.txt"
exit $failed
