"""Trains one model of the demo pair on generated prompts, on one or a few CPU threads.

    python train.py speculator.pt --shape speculator --seed 0 --stages 256:16:30:8,1024:4:80:24

A stage is TOKENS:PROMPTS:STEPS:QUESTIONS. The same command and seed give the same model on the same machine with the
same number of threads.
"""

import argparse
import random
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from data import ANSWER, CLOSING, CONTEXT, ORDERED_ANSWER, Recipe, make_batch
from model import SHAPES, Llama
from prior import circuit_layers, lay_in
from torch import Tensor

LONGEST = 9216  # number of positions in training, reached by gaps


@dataclass(frozen=True, slots=True)
class Stage:
    tokens: int
    prompts: int
    steps: int
    questions: int

    def recipes(self) -> list[Recipe]:
        """The kinds of prompts of a stage: few or many records, demo words or all words, with or without duplicates."""
        common = Recipe(questions=self.questions, gap_probability=0.5, longest=LONGEST)
        return [
            replace(common, unique_nouns=True),
            replace(common),
            replace(common, words="pool"),
            replace(common, words="pool", duplicates=0.2),
            replace(common, words="pool", duplicates=0.4, ask_duplicates=True),
        ]


def parse_stages(text: str) -> list[Stage]:
    return [Stage(*map(int, part.split(":"))) for part in text.split(",")]


def load(path: Path) -> Llama:
    saved = torch.load(path, weights_only=False)
    model = Llama(saved["shape"])
    model.load_state_dict(saved["weights"])
    return model


def save(model: Llama, path: Path) -> None:
    torch.save({"shape": model.shape, "weights": model.state_dict()}, path)


def optimizer_for(model: Llama, rate: float, circuit_share: float) -> torch.optim.AdamW:
    """AdamW over all weights except the embeddings. A group's "share" is its factor on the learning rate.

    Fixed embeddings treat all words alike, so what is learned on some words holds for others. The layers with the
    structured start learn slowly, because the random early gradients would damage their circuit.
    """
    model.embed_tokens.weight.requires_grad_(False)
    depth = circuit_layers(model.shape)
    circuit = [p for layer in model.layers[:depth] for p in layer.self_attn.parameters()]
    circuit += [p for layer in model.layers[: depth - 1] for p in layer.mlp.parameters()]
    others = [p for p in model.parameters() if p.requires_grad and not any(p is q for q in circuit)]
    groups = [
        {"params": circuit, "share": circuit_share, "weight_decay": 0.0},
        {"params": [p for p in others if p.ndim == 2], "share": 1.0, "weight_decay": 0.01},
        {"params": [p for p in others if p.ndim == 1], "share": 1.0, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95))


def losses(model: Llama, ids: Tensor, positions: Tensor, kinds: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean loss on answers, mean loss on a sample of the other text, and the correctness of each answer token.

    Returns (answer loss, text loss, right [answer tokens], kind [answer tokens]).
    """
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = model(ids, positions)[:, :-1]
        wanted, kind = ids[:, 1:], kinds[:, 1:]
        sampled = torch.rand(kind.shape) < min(1.0, 1024 / kind.numel())
        chosen = (kind >= CLOSING) | ((kind == CONTEXT) & sampled)
        logits = model.logits(hidden[chosen])
    loss = F.cross_entropy(logits.float(), wanted[chosen], reduction="none")
    is_answer = kind[chosen] >= CLOSING
    right = (logits.argmax(-1) == wanted[chosen])[is_answer]
    return loss[is_answer].mean(), loss[~is_answer].mean(), right, kind[chosen][is_answer]


class Log:
    """Means over the last steps, printed every twenty steps."""

    def __init__(self, total_steps: int):
        self.total_steps = total_steps
        self.start = time.monotonic()
        self.recent: list[tuple[float, float, Tensor, Tensor]] = []

    def add(self, step: int, tokens: int, stage: Stage, rate: float, parts: tuple[Tensor, ...]) -> None:
        answer, text, right, kind = parts
        self.recent.append((answer.item(), text.item(), right, kind))
        if step % 20 and step != self.total_steps:
            return
        right, kind = torch.cat([r[2] for r in self.recent]).float(), torch.cat([r[3] for r in self.recent])
        seconds = time.monotonic() - self.start
        print(
            f"length {stage.tokens} step {step}/{self.total_steps} tokens {tokens / 1e6:.2f}M {seconds:.0f}s"
            f" rate {rate:.1e}"
            f" loss {sum(r[0] for r in self.recent) / len(self.recent):.3f}"
            f" text {sum(r[1] for r in self.recent) / len(self.recent):.3f}"
            f" right {right[kind == ANSWER].mean():.4f} first/last {right[kind == ORDERED_ANSWER].mean():.4f}",
            flush=True,
        )
        self.recent.clear()


def train(model: Llama, stages: list[Stage], args: argparse.Namespace) -> None:
    rng = random.Random(args.seed + 1)
    optimizer = optimizer_for(model, args.rate, args.circuit_share)
    total_tokens = sum(s.tokens * s.prompts * s.steps for s in stages)
    log = Log(sum(s.steps for s in stages))
    step = tokens = 0
    for stage in stages:
        recipes = stage.recipes()
        for _ in range(stage.steps):
            left = (1 - tokens / total_tokens) / args.decay
            rate = args.rate * min(1.0, (step + 1) / 20, max(0.02, left))
            for group in optimizer.param_groups:
                group["lr"] = rate * group["share"]
            batch = make_batch(stage.prompts, stage.tokens, recipes, rng)
            parts = losses(model, *map(torch.from_numpy, batch))
            (parts[0] + args.text_weight * parts[1]).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step, tokens = step + 1, tokens + batch[0].size
            log.add(step, tokens, stage, rate, parts)
            if step % 100 == 0:
                save(model, args.out)
    save(model, args.out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="checkpoint to write")
    parser.add_argument("--shape", choices=SHAPES, default="speculator")
    parser.add_argument("--stages", type=parse_stages, required=True)
    parser.add_argument("--rate", type=float, default=5e-4, help="highest learning rate")
    parser.add_argument("--circuit-share", type=float, default=0.1, help="share of the rate for the structured start")
    parser.add_argument("--decay", type=float, default=0.6, help="share of the tokens over which the rate falls")
    parser.add_argument("--text-weight", type=float, default=0.02, help="weight of the loss outside answers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    model = Llama(SHAPES[args.shape])
    lay_in(model, args.seed)
    print(f"{sum(p.numel() for p in model.parameters())} parameters", flush=True)
    train(model, args.stages, args)


if __name__ == "__main__":
    main()
