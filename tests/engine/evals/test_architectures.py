"""`skim models check`: some architectures give the committed results again, and broken engines give "wrong"."""

import json
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from evals.architectures.check import check
from evals.architectures.registry import named
from kv_transfer.messages import GenerateOutput, GenerateRequest
from speculator_service.engine import ScoreRequest, Scores
from speculator_service.vllm_backend.engine import VllmSpeculator
from tests.engine.speculator_service.vllm_backend.conftest import keys_of_other_layers
from tests.engine.target_service.vllm_backend.broken_hooks import BreakableTarget

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[3]
AGAIN = ("BloomForCausalLM", "GPT2LMHeadModel", "Gemma3ForCausalLM", "Gemma4ForCausalLM", "InternLM2ForCausalLM")


class WithoutPositions(BreakableTarget):
    """The hook of the positions does nothing."""

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateOutput, None]:
        await self.falsify_positions("withheld")
        async for output in super().generate(request):
            yield output


class OtherKeys(VllmSpeculator):
    """Each layer's queries meet the keys of another layer."""

    async def score(self, request: ScoreRequest) -> Scores:
        async with keys_of_other_layers(self):
            return await super().score(request)


def test_the_committed_results_hold(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    skim = [sys.executable, "-c", "from cluster.commands.cli import main; main()"]
    subprocess.run([*skim, "models", "check", *AGAIN, "--json", str(file)], cwd=ROOT, check=True, timeout=550)
    found, committed = (
        json.loads(path.read_text())["architectures"] for path in (file, ROOT / "evals/architectures/results.json")
    )
    for name in AGAIN:
        for role in ("target", "speculator"):
            assert [found[name][role][key] for key in ("verdict", "why")] == [
                committed[name][role][key] for key in ("verdict", "why")
            ]


def test_control_broken_engines_are_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_ALLOW_INSECURE_SERIALIZATION", "1")  # functions as arguments of collective_rpc
    [recipe] = named(["LlamaForCausalLM"])
    found = check(recipe, tmp_path, target=WithoutPositions, speculator=OtherKeys)
    assert (found.target.verdict, found.speculator.verdict) == ("wrong", "wrong")
