"""Writes a checkpoint as an ordinary Llama (bf16 safetensors, config, tokenizer, chat template) and checks it.

python export.py speculator.pt ../../demo_models/speculator
"""

import argparse
import random
from pathlib import Path

import torch
from data import Recipe, make_prompt
from model import Llama
from tokenizer import BOS, END, MAX_POSITIONS, PAD, hf_tokenizer
from train import load
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM


def hf_config(model: Llama) -> LlamaConfig:
    shape = model.shape
    return LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=MAX_POSITIONS,
        rms_norm_eps=1e-5,
        rope_theta=shape.rope_theta,
        tie_word_embeddings=True,
        bos_token_id=BOS,
        eos_token_id=END,
        pad_token_id=PAD,
        attention_bias=False,
        mlp_bias=False,
    )


def export(model: Llama, folder: Path) -> None:
    exported = LlamaForCausalLM(hf_config(model))
    weights = {f"model.{name}": weight for name, weight in model.state_dict().items()}
    missing = exported.load_state_dict(weights, strict=False)
    if missing.unexpected_keys or set(missing.missing_keys) - {"lm_head.weight"}:
        raise RuntimeError(f"the checkpoint does not fit its config: {missing}")
    exported.to(torch.bfloat16).save_pretrained(folder)
    hf_tokenizer().save_pretrained(folder)


@torch.no_grad()
def check(model: Llama, folder: Path) -> float:
    """Largest difference in logits between the folder's model and `model` rounded to bf16; both run in float32.

    The prompt's positions have gaps, like those of a kept prompt. Raises RuntimeError if encoding the decoded prompt
    does not give the same ids.
    """
    recipe = Recipe(questions=3, words="pool", gap_probability=1.0, longest=4096)
    prompt = make_prompt(512, recipe, random.Random(0))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if tokenizer.encode(tokenizer.decode(prompt.ids), add_special_tokens=False) != prompt.ids:
        raise RuntimeError(f"the tokenizer in {folder} does not encode a decoded training prompt to the same ids")
    rounded = Llama(model.shape)
    rounded.load_state_dict({name: weight.bfloat16().float() for name, weight in model.state_dict().items()})
    ids, positions = torch.tensor([prompt.ids]), torch.from_numpy(prompt.positions)[None]
    exported = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    # Without a mask, transformers takes gaps in the positions for packed sequences and masks attention across them.
    logits = exported(ids, position_ids=positions, attention_mask=torch.ones_like(ids)).logits
    return (rounded.logits(rounded(ids, positions)) - logits).abs().max().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    model = load(args.checkpoint)
    export(model, args.folder)
    difference = check(model, args.folder)
    size = (args.folder / "model.safetensors").stat().st_size / 1e6
    print(f"{args.folder}: {size:.2f} MB, logits within {difference:.1e} of the trained model's")
    if difference > 1e-2:
        raise SystemExit("the exported model differs from the trained one: do not use it")


if __name__ == "__main__":
    main()
