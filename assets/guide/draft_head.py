"""An EAGLE-3 draft head for the guide in plain torch: one layer that drafts from the guide's own hidden states.

Owns its architecture, the names of its weights and its files. Source: Li et al., EAGLE-3, 2025 (arXiv 2503.01840);
the arithmetic is that of `eagle3` in llama.cpp src/models/eagle3.cpp as vendored in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from assets.guide.model import FeedForward, Llama, Shape, rotary_table, rotate

TARGET_LAYERS = (1, 2, 3)  # the layers of the guide whose inputs are read


class Eagle3(nn.Module):
    """Drafts one of the tokens `drafted` [n_drafted], ids of the guide's in order, and a state for the next draft.
    At each position it sees the token after it, so that it predicts the one after that."""

    def __init__(self, shape: Shape, drafted: Tensor) -> None:
        super().__init__()
        self.shape, self.drafted = shape, drafted
        n_in, n_kv = 2 * shape.n_hidden, shape.n_kv_heads * shape.head_dim
        self.fc = nn.Linear(len(TARGET_LAYERS) * shape.n_hidden, shape.n_hidden, bias=False)
        self.midlayer = nn.ModuleDict(
            {
                "input_layernorm": nn.RMSNorm(shape.n_hidden, eps=shape.rms_norm_eps),
                "hidden_norm": nn.RMSNorm(shape.n_hidden, eps=shape.rms_norm_eps),
                "self_attn": nn.ModuleDict(
                    {
                        "q_proj": nn.Linear(n_in, shape.n_heads * shape.head_dim, bias=False),
                        "k_proj": nn.Linear(n_in, n_kv, bias=False),
                        "v_proj": nn.Linear(n_in, n_kv, bias=False),
                        "o_proj": nn.Linear(shape.n_heads * shape.head_dim, shape.n_hidden, bias=False),
                    }
                ),
                "post_attention_layernorm": nn.RMSNorm(shape.n_hidden, eps=shape.rms_norm_eps),
                "mlp": FeedForward(shape),
            }
        )
        self.norm = nn.RMSNorm(shape.n_hidden, eps=shape.rms_norm_eps)
        self.lm_head = nn.Linear(shape.n_hidden, len(drafted), bias=False)
        cosines, sines = rotary_table(shape)
        self.register_buffer("cosines", cosines, persistent=False)
        self.register_buffer("sines", sines, persistent=False)

    def start_from(self, guide: Llama) -> None:
        """Take the guide's last layer and its output matrix, and the mean of what it reads, to begin with."""
        n_hidden, last = self.shape.n_hidden, guide.layers[-1]
        with torch.no_grad():
            self.fc.weight.copy_(torch.cat([torch.zeros(n_hidden, 2 * n_hidden), torch.eye(n_hidden)], dim=1))
            for name in ("q_proj", "k_proj", "v_proj"):
                source = getattr(last.self_attn, name).weight
                self.midlayer["self_attn"][name].weight.copy_(torch.cat([0.1 * source, source], dim=1))
            self.midlayer["self_attn"]["o_proj"].weight.copy_(last.self_attn.o_proj.weight)
            self.midlayer["hidden_norm"].load_state_dict(last.input_layernorm.state_dict())
            self.midlayer["post_attention_layernorm"].load_state_dict(last.post_attention_layernorm.state_dict())
            self.midlayer["mlp"].load_state_dict(last.mlp.state_dict())
            self.norm.load_state_dict(guide.norm.state_dict())
            self.lm_head.weight.copy_(guide.embed_tokens.weight[self.drafted])

    def unroll(self, following: Tensor, features: Tensor, n_steps: int) -> list[Tensor]:
        """Return the states [batch, length, n_hidden] after each of `n_steps`, each drafting on with the states before.

        `following` are the embeddings of the tokens after each position, `features` the guide's hidden states there.
        A step's first positions, as many as its number, have no states before them and mean nothing.
        """
        attention = self.midlayer["self_attn"]
        batch, length, _ = following.shape
        cosines, sines = self.cosines[:length], self.sines[:length]
        embedded, states = self.midlayer["input_layernorm"](following), self.fc(features)
        n_groups = self.shape.n_heads // self.shape.n_kv_heads
        keys: list[Tensor] = []
        values: list[Tensor] = []
        outputs = []
        for step in range(n_steps):
            hidden = torch.cat([embedded, self.midlayer["hidden_norm"](states)], dim=-1)
            query, key, value = (
                attention[name](hidden).view(batch, length, -1, self.shape.head_dim).transpose(1, 2)
                for name in ("q_proj", "k_proj", "v_proj")
            )
            query = rotate(query, cosines, sines)
            keys.append(rotate(key, cosines, sines).repeat_interleave(n_groups, dim=1))
            values.append(value.repeat_interleave(n_groups, dim=1))
            mixed = _mixed(query, keys, values, step).transpose(1, 2).reshape(batch, length, -1)
            states = states + attention["o_proj"](mixed)
            states = states + self.midlayer["mlp"](self.midlayer["post_attention_layernorm"](states))
            outputs.append(states)
            states = functional.pad(states, (0, 0, 1, 0))[:, :-1]
        return outputs

    def logits(self, states: Tensor) -> Tensor:
        """Return scores [..., n_drafted]."""
        return self.lm_head(self.norm(states))


def _mixed(query: Tensor, keys: list[Tensor], values: list[Tensor], step: int) -> Tensor:
    """Attend to what the guide computed up to where the draft began, and then to the draft's own steps."""
    length, scale = query.shape[2], query.shape[3] ** -0.5
    is_hidden = torch.ones(length, length, dtype=torch.bool).triu(1 - step)
    scores = [(query @ keys[0].mT * scale).masked_fill(is_hidden, float("-inf"))]
    drafted = [(functional.pad(keys[i], (0, 0, step - i, 0))[:, :, :length], i) for i in range(1, step + 1)]
    scores += [(query * key).sum(-1, keepdim=True) * scale for key, _ in drafted]
    shares = torch.cat(scores, dim=-1).softmax(-1)
    mixed = shares[..., :length] @ values[0]
    for column, (_, i) in enumerate(drafted):
        value = functional.pad(values[i], (0, 0, step - i, 0))[:, :, :length]
        mixed = mixed + shares[..., length + column, None] * value
    return mixed


def guide_features(guide: Llama, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return what the head reads of tokens [batch, length], [batch, length, 3 * n_hidden], and the final states."""
    length = tokens.shape[1]
    cosines, sines = guide.cosines[:length], guide.sines[:length]
    hidden, inputs = guide.embed_tokens(tokens), []
    for index, layer in enumerate(guide.layers):
        if index in TARGET_LAYERS:
            inputs.append(hidden)
        hidden = layer(hidden, cosines, sines)
    return torch.cat(inputs, dim=-1), guide.norm(hidden)


def save_head(head: Eagle3, folder: Path) -> None:
    """Write model.safetensors and config.json as EAGLE-3 heads are published."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: weight.detach().float().contiguous() for name, weight in head.named_parameters()}
    weights["d2t"] = head.drafted - torch.arange(len(head.drafted))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    shape = head.shape
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "draft_vocab_size": len(head.drafted),
        "eagle_aux_hidden_state_layer_ids": list(TARGET_LAYERS),
        "target_hidden_size": shape.n_hidden,
        "vocab_size": shape.n_vocab,
        "hidden_size": shape.n_hidden,
        "intermediate_size": shape.n_feed_forward,
        "num_hidden_layers": 1,
        "num_attention_heads": shape.n_heads,
        "num_key_value_heads": shape.n_kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": shape.n_positions,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
