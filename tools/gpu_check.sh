#!/usr/bin/env bash
# What only a GPU can show, by the commands that are there, on one card: `make gpu-check`, or PARTS="kernels llm" of it.
# Each part writes results/gpu-check/PART.txt; report.txt has the machine, the ends of all parts, and what failed. A part
# that its time limit ends was running, and counts as such. Setting up environments, model and data comes before that.
set -uo pipefail
unset DRY_RUN CHECK_ONLY RAY_ADDRESS SLURM
out=results/gpu-check
mkdir -p "$out"

case "$(nvidia-smi --query-gpu=name --format=csv,noheader 2> /dev/null)" in
    "") echo "error: nvidia-smi names no GPU here, and this check is for one." >&2; exit 1 ;;
esac

# prepare PART: sets up what the part needs.
prepare() {
    case $1 in
        kernels) "$MAKE" -s "$ENVIRONMENTS/verl-gpu/installed" ;;
        llm) "$MAKE" -s "$ENVIRONMENTS/verl-gpu/installed" && python3 apply.py apply verl --source git --checkouts "$CHECKOUTS" &&
            "$MAKE" -s llm-model MODEL=Qwen2.5-Math-1.5B && "$MAKE" -s llm-data SETS="math-3to5 aime-2024" ;;
        control) "$MAKE" -s "$ENVIRONMENTS/fasttd3-gpu/installed" &&
            python3 apply.py apply fasttd3 humanoid-bench --checkouts "$CHECKOUTS" ;;
        vision) "$MAKE" -s "$ENVIRONMENTS/timm-gpu/installed" &&
            python3 apply.py apply timm --source git --checkouts "$CHECKOUTS" ;;
    esac
}

# part PART: runs it. llm: GRPO + ERA with vLLM, five steps of the paper's 1.5B run with a smaller batch.
part() {
    local small="data.train_batch_size=32 data.gen_batch_size=32 actor_rollout_ref.actor.ppo_mini_batch_size=32"
    small+=" data.max_response_length=1024 actor_rollout_ref.rollout.tensor_model_parallel_size=1"
    small+=" actor_rollout_ref.rollout.gpu_memory_utilization=0.5 algorithm.filter_groups.enable=False"
    small+=" trainer.val_before_train=False trainer.test_freq=-1 trainer.save_freq=-1"
    case $1 in
        kernels) timeout 240 "$MAKE" bench-gpu ;;
        llm) rm -rf "$out/llm" && timeout 300 "$MAKE" llm-era-1.5b NNODES=1 GPUS_PER_NODE=1 TOTAL_STEPS=5 \
            CKPTS_DIR="$PWD/$out/llm" LOGGER="[console,file]" ARGS="$small" && tail -n 2 "$out/llm/metrics.jsonl" ;;
        control) timeout 90 "$MAKE" control-time TASKS=h1hand-walk-v0 AGENT=fastsac_era SEED=1 OUTPUT="$out/control" ;;
        vision) timeout 120 "$MAKE" vision-cifar10-era SEED=42 GPUS=1 EPOCHS=1 OUTPUT="$out/vision" ;;
    esac
}

failed=0 summary=
read -ra parts <<< "${PARTS:-kernels llm control vision}"
for name in "${parts[@]}"; do
    echo "$name: preparing; what it prints goes to $out/$name.txt"
    if prepare "$name" > "$out/$name.txt" 2>&1; then
        echo "$name: running"
        begun=$SECONDS
        part "$name" >> "$out/$name.txt" 2>&1
        code=$?
        case $code in
            0) said=passed ;;
            124) said="was running when its time was over" ;;
            *) said="failed with exit code $code" failed=1 ;;
        esac
        said+=", $((SECONDS - begun)) s"
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
