"""Keys in a paged cache with the layout of a GPU, without an engine and without a GPU."""

from dataclasses import dataclass

import torch

from speculator_service.scoring.paged import Pages


@dataclass
class GpuKeys:
    """memory: [B, G, N, 2D], any strides. blocks: int64, the prompt's blocks. length: M. step: blocks per piece."""

    memory: torch.Tensor
    blocks: torch.Tensor
    length: int
    step: int = 1

    @property
    def shape(self):
        return self.memory.shape[1], self.length, self.memory.shape[3] // 2

    @property
    def pages(self):
        return Pages(self.memory[..., : self.shape[2]], self.blocks)

    def pieces(self, kv_head):
        left = self.length
        for blocks in self.blocks.split(self.step):
            piece = self.memory[blocks, kv_head, :, : self.shape[2]].flatten(0, 1)[:left]
            left -= len(piece)
            yield piece

    def whole(self):
        """[G, M, D]."""
        return torch.stack([torch.cat(list(self.pieces(head))) for head in range(self.shape[0])])


def random_keys(layers, *, prompt, kv_heads=2, block=16, size=16, dtype=torch.float32):
    """The keys of each layer, in blocks of random order between the blocks of other requests."""
    needed = -(-prompt // block)
    generator = torch.Generator().manual_seed(prompt)
    shape = (layers, needed + 3, kv_heads, block, 2 * size)
    # The engines' layout: keys next to values, and tokens before heads in memory.
    memory = torch.randn(shape, generator=generator).to(dtype).transpose(2, 3).contiguous().transpose(2, 3)
    blocks = torch.randperm(needed + 3, generator=generator)[:needed]
    return [GpuKeys(layer, blocks, prompt) for layer in memory]
