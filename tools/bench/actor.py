"""Time and peak memory of verl's actor with ERA, without, and with the release's way of scaling, as ratios in one run.

    python -m tools.bench.actor --checkout checkouts/verl [--tokens 8192 16384 30720] [--csv FILE]

The patched checkout's DataParallelPPOActor takes its two passes, old_log_prob and update, with a Qwen2 of few layers
and a head of full size: remove-padding, one dynamic batch of --tokens tokens, gradient checkpointing, AdamW with
learning rate 0, so that each turn has the same policy. Eight responses; of the positive-advantage ones, the one with
the lowest and the one with the highest entropy are scaled. With flash-attn and bfloat16 it is used throughout;
otherwise its padding functions are plain torch, and attention spans the pack: a little more work, the same in all arms.

The arms take turns in one process, in reversed order every other turn; each is compared with its own baseline, turn by
turn. Memory is what a pass takes beyond what was held before it: on a GPU the allocator's peak, on CPU that of the
resident set (only on Linux). Before anything is measured, the arms' gradients are compared, and that tokens were scaled
is asserted.
"""

import argparse
import contextlib
import copy
import ctypes
import dataclasses
import gc
import importlib.metadata
import importlib.util
import os
import sys
import time
import types
import warnings
from pathlib import Path

os.environ.setdefault(
    "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"
)  # the arms' sizes differ: without it the pool fragments

import psutil
import torch
import torch.distributed as dist
from tqdm import tqdm

from tools.bench.stand_ins import install_memory_counters, install_padding_functions
from tools.bench.tables import machine_of, print_table, rounded, summarise, write_csv

RESPONSES, TOP_K = 8, 20
LOGIT_STD = 3.0
SCALED_FRACTION = 2 / RESPONSES
# By rank of H_resp. All positive ones pass the release's gate, so that it scales what ERA scales.
ADVANTAGES = [1.5, -0.5, 1.5, -0.5, 1.5, -0.5, -0.5, 1.5]
M_MMAP_THRESHOLD = -3  # of malloc.h
PASSES = ("old_log_prob", "update")


@dataclasses.dataclass(frozen=True)
class Arm:
    title: str
    baseline: str
    era: dict | None = None  # beside low, high and k; None for off
    release: bool = False
    actor: dict = dataclasses.field(default_factory=dict)


OFF_POLICY = {"ppo_mini_batch_size": RESPONSES // 2}
KL = {"use_kl_loss": True}
ENTROPY = {"entropy_coeff": 0.001}
FUSED = {"use_fused_kernels": True}
ARMS = {
    "grpo": Arm("GRPO", "grpo"),
    "grpo-logging": Arm("GRPO logging ERA's metrics (k 1)", "grpo", {"k": 1.0}),
    "era": Arm("ERA", "grpo", {}),
    "era-topk": Arm(f"ERA, top-k {TOP_K}", "grpo", {"top_k": TOP_K}),
    "release": Arm("the release's way", "grpo", {}, release=True),
    "release-topk": Arm(f"the release's way, top-k {TOP_K}", "grpo", {"top_k": TOP_K}, release=True),
    "grpo-offpolicy": Arm("GRPO, 2 mini-batches", "grpo-offpolicy", actor=OFF_POLICY),
    "era-offpolicy": Arm("ERA, 2 mini-batches", "grpo-offpolicy", {}, actor=OFF_POLICY),
    "grpo-kl": Arm("GRPO, KL loss", "grpo-kl", actor=KL),
    "era-kl": Arm("ERA, KL loss", "grpo-kl", {}, actor=KL),
    "grpo-entropy": Arm("GRPO, entropy bonus", "grpo-entropy", actor=ENTROPY),
    "era-entropy": Arm("ERA, entropy bonus", "grpo-entropy", {}, actor=ENTROPY),
    "grpo-fused": Arm("GRPO, fused kernels (torch)", "grpo-fused", actor=FUSED),
    "era-fused": Arm("ERA, fused kernels (torch)", "grpo-fused", {}, actor=FUSED),
}


def device():
    return "cuda" if torch.cuda.is_available() else "cpu"


def uses_flash_attention(dtype):
    return device() == "cuda" and dtype == torch.bfloat16 and importlib.util.find_spec("flash_attn") is not None


def prepare_verl(checkout):
    """Make `import verl` the checkout, and its actor run on this machine, in a group of one process."""
    sys.path.insert(0, str(Path(checkout).resolve()))
    flash_attention = importlib.util.find_spec("flash_attn") is not None
    if device() == "cuda" and not flash_attention:  # dp_actor imports these where there is a GPU
        names = ("index_first_axis", "pad_input", "rearrange", "unpad_input")
        sys.modules["flash_attn.bert_padding"] = types.SimpleNamespace(**dict.fromkeys(names))
    if not flash_attention or device() == "cpu":
        install_padding_functions()
    if device() == "cpu":
        install_memory_counters()
    dist.init_process_group("nccl" if device() == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1)


class Bench:
    """One policy, one batch, and the actors of the arms that train it.

    Args:
        settings: with the fields tokens, vocabulary, width, layers, dtype (a torch dtype), k and temperature.
    """

    def __init__(self, settings):
        self.settings = settings
        torch.manual_seed(0)
        self.model = build_model(settings)
        self.fused_model = with_fused_kernels(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.0)
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()  # AdamW's state is there before the first update is measured
        self.optimizer.zero_grad()
        self.batch = make_batch(settings)
        set_label_probabilities(self.model, self.batch)
        self.low, self.high = self._decide_bounds()

    def _decide_bounds(self):
        from verl.utils.era import response_entropy

        _, entropys = self.actor(ARMS["grpo"]).compute_log_prob(self._data(), calculate_entropy=True)
        h = response_entropy(entropys.float(), torch.ones_like(entropys))
        advantages, bounds = advantages_and_bounds(h)
        self.batch["advantages"] = advantages.unsqueeze(-1).expand_as(self.batch["responses"]).contiguous()
        return bounds

    def _data(self):
        from verl import DataProto

        meta = {
            "temperature": self.settings.temperature,
            "micro_batch_size": RESPONSES,
            "use_dynamic_bsz": True,
            "max_token_len": self.settings.tokens,
        }
        return DataProto(batch=self.batch.clone(), meta_info=meta)

    def actor(self, arm):
        from omegaconf import OmegaConf
        from verl.workers.actor import dp_actor

        settings = self.settings
        config = {
            "ppo_mini_batch_size": RESPONSES,
            "use_dynamic_bsz": True,
            "ppo_max_token_len_per_gpu": settings.tokens,
            "use_remove_padding": True,
            "use_fused_kernels": False,
            "use_torch_compile": device() == "cuda",
            **arm.actor,
        }
        era = {}
        if arm.era is not None:
            era = {"low": self.low, "high": self.high, "k": settings.k, **arm.era}
            config["era"] = {"enable": not arm.release, **({} if arm.release else era)}
        defaults = OmegaConf.load(
            Path(dp_actor.__file__).parents[2] / "trainer/config/ppo_trainer.yaml"
        ).actor_rollout_ref.actor
        model = self.fused_model if config["use_fused_kernels"] else self.model
        actor = dp_actor.DataParallelPPOActor(OmegaConf.merge(defaults, config), model, self.optimizer)
        if settings.dtype == torch.float32:
            actor.device_name = "cpu" if device() == "cuda" else "cuda"  # no bf16 autocast on the device that is used
        if arm.release:
            from tools.bench.release_way import ReleaseHooks

            actor.era = ReleaseHooks(actor, **era)
        return actor

    def take_turn(self, arm, actor, measure):
        """One step of training. `measure` runs a pass and returns its result and a number.

        Returns:
            The numbers of both passes, the batch as the update saw it, and the update's metrics.
        """
        data = self._data()
        gc.collect()  # gradient checkpointing leaves cycles that hold logits

        def old_log_prob():
            # The release's hooks take the entropies themselves; verl's worker asks for them in this pass.
            log_probs, entropys = actor.compute_log_prob(data, calculate_entropy=not arm.release)
            return actor.era.old_log_prob_tensors({}, data, log_probs, entropys)

        tensors, old_measured = measure(old_log_prob)
        del tensors["entropys"]  # verl's trainer drops them before the update
        for key, value in tensors.items():
            data.batch[key] = value
        gc.collect()
        metrics, update_measured = measure(lambda: actor.update_policy(data))
        return dict(zip(PASSES, (old_measured, update_measured))), data.batch, metrics

    def zero_grad(self):
        self.optimizer.zero_grad()

    def assert_work_was_done(self, name, actor, metrics):
        """That the arm scaled the tokens it is to scale, in each of its passes, and updated with finite numbers."""
        arm = ARMS[name]
        scaled = {}
        if arm.release:
            scaled = {f"pass {i}": fraction.item() for i, fraction in enumerate(actor.era.scaled_fractions)}
            assert len(scaled) == 2, f"{name}: {len(scaled)} passes scaled, expected 2"
        elif arm.era is not None:
            scaled = {"update": metrics["era/scaled_token_fraction"]}
        expected = 0.0 if arm.era == {"k": 1.0} else SCALED_FRACTION
        for place, fraction in scaled.items():
            assert fraction == expected, f"{name}, {place}: {fraction} of the tokens were scaled, expected {expected}"
        assert all(0 < norm < float("inf") for norm in metrics["actor/grad_norm"]), (
            f"{name}: gradient norms {metrics['actor/grad_norm']}"
        )


def build_model(settings):
    from transformers import AutoModelForCausalLM, Qwen2Config

    heads = max(1, settings.width // 128)
    config = Qwen2Config(
        vocab_size=settings.vocabulary,
        hidden_size=settings.width,
        intermediate_size=4 * settings.width,
        num_hidden_layers=settings.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=settings.tokens,
        tie_word_embeddings=False,
    )
    attention = "flash_attention_2" if uses_flash_attention(settings.dtype) else "sdpa"
    with torch.device(device()):
        model = AutoModelForCausalLM.from_config(config, torch_dtype=settings.dtype, attn_implementation=attention)
    # Fresh logits hardly differ.
    torch.nn.init.constant_(model.model.norm.weight, LOGIT_STD / (config.initializer_range * settings.width**0.5))
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def with_fused_kernels(model):
    """The same parameters in a model of a class of its own: verl replaces the forward of the class, for good."""
    from verl.models.transformers.monkey_patch import patch_forward_with_backends

    fused = copy.copy(model)
    fused.__class__ = type("Fused", (type(model),), {})
    patch_forward_with_backends(fused, use_fused_kernels=True, fused_kernels_backend="torch")
    return fused


def make_batch(settings):
    """Full-length responses. Each repeats one word, so that its tokens have nearly the same entropy at any length."""
    from tensordict import TensorDict

    length = settings.tokens // RESPONSES
    prompt = length // 5  # as the paper's 2,048 + 8,192
    words = torch.randperm(settings.vocabulary)[:RESPONSES]
    tokens = words.unsqueeze(-1).repeat(1, length)
    batch = {
        "input_ids": tokens,
        "responses": tokens[:, prompt:].clone(),
        "attention_mask": torch.ones_like(tokens),
        "position_ids": torch.arange(length).repeat(RESPONSES, 1),
        "ref_log_prob": -4 * torch.rand(RESPONSES, length - prompt),
        "advantages": torch.zeros(RESPONSES, length - prompt),
    }
    return TensorDict(batch, batch_size=[RESPONSES]).to(device())


@torch.no_grad()
def set_label_probabilities(model, batch):
    """Set rows of the head so that each response's word is likely there, and that the H_resp lie apart."""
    packed = {key: batch[key].view(1, -1) for key in ("input_ids", "position_ids")}
    hidden = (
        model.model(**packed, use_cache=False).last_hidden_state.view(RESPONSES, -1, model.config.hidden_size).mean(1)
    )
    probabilities = torch.linspace(0.95, 0.05, RESPONSES, device=hidden.device)
    logits = probabilities.logit() + model.lm_head(hidden).float().logsumexp(-1)
    rows = logits.unsqueeze(-1) * hidden / hidden.float().square().sum(-1, keepdim=True)
    model.lm_head.weight[batch["input_ids"][:, 0]] = rows.to(hidden.dtype)


def advantages_and_bounds(h):
    """ADVANTAGES by the responses' rank in H_resp; bounds between the second and the third from either end."""
    ranked, order = h.sort()
    advantages = torch.empty(RESPONSES, device=h.device)
    advantages[order] = torch.tensor(ADVANTAGES, device=h.device)
    return advantages, (ranked[1:3].mean().item(), ranked[-2:].mean().item())


def gradients(settings, name):
    """One update of a fresh policy by an arm: its clipped gradients, one vector in fp32, and their norm before."""
    bench = Bench(settings)
    seen = []
    bench.optimizer.register_step_pre_hook(
        lambda *_: seen.append(torch.cat([p.grad.float().flatten() for p in bench.model.parameters()]))
    )
    _, _, metrics = bench.take_turn(ARMS[name], bench.actor(ARMS[name]), lambda run: (run(), None))
    return torch.cat([*seen, torch.tensor(metrics["actor/grad_norm"], device=device())])


def check_gradients(args):
    """That the arms that are to agree do, and that scaling changes the gradient, on a small case with few words."""
    small = argparse.Namespace(
        **{**vars(args), "tokens": 16 * RESPONSES, "vocabulary": 10 * TOP_K, "width": 32, "layers": 1}
    )
    tolerance = 1e-4 if args.dtype == torch.float32 else 0.05
    names = ("grpo", "grpo-logging", "era", "era-topk", "release", "release-topk", "era-fused")
    found = {name: gradients(small, name) for name in names}

    def distance(a, b):
        return ((found[a] - found[b]).norm() / found[b].norm()).item()

    for a, b in [("grpo-logging", "grpo"), ("release", "era"), ("release-topk", "era-topk"), ("era-fused", "era")]:
        assert distance(a, b) < tolerance, (
            f"the gradients of {a} and {b} differ by {distance(a, b):.2g} of their norm, expected less than {tolerance}"
        )
    assert distance("era", "grpo") > 2 * tolerance, (
        f"the gradients of era and grpo differ by no more than {distance('era', 'grpo'):.2g} of their norm: era "
        "does nothing"
    )


def synchronize():
    if device() == "cuda":
        torch.cuda.synchronize()


def measure_seconds(run):
    synchronize()
    start = time.perf_counter()
    result = run()
    synchronize()
    return result, time.perf_counter() - start


def measure_peak_mib(run):
    """MiB beyond what was held before; None where the system has no such counter."""
    if device() == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = run()
        return result, (torch.cuda.max_memory_allocated() - before) / 2**20
    try:
        libc = ctypes.CDLL(None)
        libc.mallopt(
            M_MMAP_THRESHOLD, 2**16
        )  # else glibc keeps freed rows of logits, which then serve this pass and do not count
        libc.malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets the peak of the resident set
    except (OSError, AttributeError):
        return run(), None
    before = peak_resident_mib()
    result = run()
    return result, peak_resident_mib() - before


def peak_resident_mib():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 2**10


def limit_memory():
    """Let a pass that is too large fail with an error, instead of Linux ending the process."""
    if device() == "cpu" and sys.platform == "linux":
        import resource

        allowed = psutil.Process().memory_info().data + int(0.9 * psutil.virtual_memory().available)
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(
            resource.RLIMIT_DATA, (allowed if hard == resource.RLIM_INFINITY else min(allowed, hard), hard)
        )


def is_out_of_memory(error):
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)


def run(make_bench, settings, names, turns):
    """Warm up and check, then measure the time of `turns` turns, and last, because it slows the allocator, the memory.

    Args:
        make_bench: from the settings, a `Bench`, or what has its methods.

    Returns:
        Seconds and MiB for each pass and arm. An arm that does not fit the memory has no turns and no MiB.
    """
    seconds = {pass_: {name: [] for name in names} for pass_ in PASSES}
    memory = {pass_: {} for pass_ in PASSES}
    unfit, bench = set(), None
    progress = tqdm(total=(turns + 2) * len(names), desc=f"{settings.tokens:,} tokens", unit="step", mininterval=1)

    def attempt(name, action):
        try:
            return action()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            progress.write(f"{settings.tokens:,} tokens: {name} does not fit the memory", file=sys.stderr)
        if bench is not None:
            bench.zero_grad()
        gc.collect()
        if device() == "cuda":
            torch.cuda.empty_cache()

    bench = attempt("the policy", lambda: make_bench(settings))
    actors = {name: bench.actor(ARMS[name]) for name in names} if bench else {}
    for turn in range(turns + 2):
        measure = measure_peak_mib if turn == turns + 1 else measure_seconds
        for name in actors if turn % 2 else reversed(actors):
            progress.update()
            taken = None if name in unfit else attempt(name, lambda: bench.take_turn(ARMS[name], actors[name], measure))
            if taken is None:
                unfit.add(name)
                continue
            measured, _, metrics = taken
            for pass_ in PASSES:
                if turn == 0:
                    bench.assert_work_was_done(name, actors[name], metrics)
                elif turn == turns + 1:
                    memory[pass_][name] = measured[pass_]
                else:
                    seconds[pass_][name].append(measured[pass_])
    progress.close()
    for pass_ in PASSES:
        for name in unfit:
            seconds[pass_][name] = []
            memory[pass_].pop(name, None)
    return seconds, memory


@contextlib.contextmanager
def quiet():
    """Every actor of verl announces itself on stdout."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def versions(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def environment(args):
    import verl

    on_gpu = device() == "cuda"
    memory = torch.cuda.get_device_properties(0).total_memory if on_gpu else psutil.virtual_memory().total
    return {
        **machine_of(device()),
        "memory_gib": round(memory / 2**30, 1),
        "flash_attn": versions("flash_attn") if uses_flash_attention(args.dtype) else None,
        "transformers": versions("transformers"),
        "verl": verl.__version__,
    }


def report(args, machine, tokens, seconds, memory):
    """Print the tables of one size, and return its rows for the CSV."""
    shape = {
        "dtype": str(args.dtype).removeprefix("torch."),
        "vocabulary": args.vocabulary,
        "width": args.width,
        "layers": args.layers,
        "tokens": tokens,
        "responses": RESPONSES,
        "k": args.k,
        "temperature": args.temperature,
        "turns": args.turns,
    }
    print(
        f"\n{tokens:,} tokens x {args.vocabulary:,} {shape['dtype']}, width {args.width}, {args.layers} layers, "
        f"k {args.k:g}, temperature {args.temperature:g}; medians of {args.turns} turns, ratios to the arm's own "
        "baseline, paired by turn"
    )
    rows = []
    for pass_ in PASSES:
        summary = summarise(seconds[pass_], memory[pass_], {name: ARMS[name].baseline for name in seconds[pass_]})
        print(f"\n{pass_}:\n")
        print_table([{**row, "arm": ARMS[row["arm"]].title} for row in summary])
        rows += [
            {
                **machine,
                **shape,
                "pass": pass_,
                "arm": row["arm"],
                "baseline": ARMS[row["arm"]].baseline,
                "fits": row["seconds"] is not None,
                **rounded(row),
            }
            for row in summary
        ]
    sys.stdout.flush()
    return rows


def add_size_arguments(parser, names):
    """Arguments: names of the arms to choose from."""
    gpu = device() == "cuda"
    parser.add_argument(
        "--tokens",
        type=int,
        nargs="+",
        default=[8192, 16384, 30720] if gpu else [512],
        help="of a batch, prompts included; several for several sizes",
    )
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--width", type=int, default=3584 if gpu else 128)
    parser.add_argument("--layers", type=int, default=4 if gpu else 2)
    parser.add_argument("--k", type=float, default=2.0)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument(
        "--arms",
        nargs="+",
        choices=names,
        default=list(names),
        metavar="ARM",
        help=f"of {', '.join(names)}; their baselines are added",
    )
    parser.add_argument("--csv", type=Path, help="also write a row per size, pass and arm to this file")


def size_problems(args):
    problems = []
    if any(tokens < 8 * RESPONSES or tokens % RESPONSES for tokens in args.tokens):
        problems.append(
            f"--tokens are multiples of {RESPONSES}, at least {8 * RESPONSES}: there are {RESPONSES} responses"
        )
    if args.vocabulary < TOP_K:
        problems.append(f"--vocabulary is at least {TOP_K}")
    if args.width < 16 or args.width % (128 if args.width > 128 else 16):
        problems.append("--width is a multiple of 16, above 128 of 128")
    if args.layers < 1 or args.turns < 2 or args.k <= 1 or args.temperature <= 0:
        problems.append("at least 1 layer, 2 turns, k > 1 and a temperature > 0 are needed")
    if args.csv and not os.access(args.csv.parent, os.W_OK):
        problems.append(f"the folder of {args.csv} is not there, or cannot be written to")
    return problems


def with_baselines(names):
    return [name for name in ARMS if name in names or name in {ARMS[arm].baseline for arm in names}]


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkout", required=True, help="a verl checkout with the overlay")
    default = "bfloat16" if device() == "cuda" else "float32"
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default=default)
    add_size_arguments(parser, ARMS)
    args = parser.parse_args()
    problems = size_problems(args)
    if not (Path(args.checkout) / "verl/utils/era_fsdp.py").is_file():
        problems.insert(0, f"{args.checkout} is not a verl checkout with the overlay; run `make apply` first")
    if problems:
        parser.error("; ".join(problems))
    args.dtype = getattr(torch, args.dtype)
    return args


def measure_sizes(make_bench, args, machine):
    """Measure and print the tables of each size; write the CSV after each."""
    print("; ".join(f"{key} {value}" for key, value in machine.items() if value is not None))
    names, rows = with_baselines(args.arms), []
    for tokens in args.tokens:
        with quiet():
            settings = argparse.Namespace(**{**vars(args), "tokens": tokens})
            seconds, memory = run(make_bench, settings, names, args.turns)
        rows += report(args, machine, tokens, seconds, memory)
        if args.csv:
            write_csv(args.csv, rows)


def main():
    args = read_arguments()
    warnings.filterwarnings("ignore", message=".*(CUDA is not available|pkg_resources)")
    with quiet():
        prepare_verl(args.checkout)
        check_gradients(args)
        limit_memory()
        machine = environment(args)
    measure_sizes(Bench, args, machine)


if __name__ == "__main__":
    main()
