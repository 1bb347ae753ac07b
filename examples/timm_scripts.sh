#!/usr/bin/env bash
# ResNet-18 with ERA by timm's train.py, on a folder of images: DATA/train/CLASS/*.png and DATA/validation/CLASS/*.png
#
#   python3 apply.py apply timm                   # in a clone of this project, with timm's packages
#   bash examples/timm_scripts.sh DATA --num-classes 10
#
# train.py says what H0 guarantees before it trains; summary.csv has eval_entropy_min, which is never below that.
# validate.py --checkpoint FILE then evaluates with ERA as the checkpoint was trained.
set -eo pipefail
[[ $# -ge 1 ]] || { echo "usage: bash examples/timm_scripts.sh DATA [flags of train.py]" >&2; exit 2; }
data=$(cd "$1" && pwd)
out=$PWD/results/timm_scripts
device=$(python3 -c 'import torch; print("cuda" if torch.cuda.is_available() else "cpu")')
cd "${CHECKOUTS:-checkouts}/timm"
exec python3 train.py --data-dir "$data" --model resnet18 --img-size 64 --batch-size 64 --epochs 20 --device "$device" \
    --opt adamw --lr 1e-3 --output "$out" --experiment era --era-min-entropy 0.6 "${@:2}"
