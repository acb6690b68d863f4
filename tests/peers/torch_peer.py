"""PyTorch as a peer of tools/bench: a child process that speaks one JSON object a line.

  {"ask": "hello"}                              -> {"ok": true, "version": ..., "build": ..., "threads": 1}
  {"ask": "step", "variant": ..., "model": {dim, layers, heads, kv_heads, head_dim, ffn, vocab}, "dtype": "f32" | "bf16",
   "lengths": [[of row 0's documents], ...], "seed": n}  -> {"ok": true, "seconds": of a warm step, "wall": ..., "loss": of the first step}
  {"ask": "attention", "variant": ..., "heads", "kv_heads", "head_dim", "lengths": [...]}  -> the same; "seconds" is forward and backward
  {"ask": "iterate"}                            -> {"ok": true, "seconds": ..., "wall": ..., "loss": ...}: one iteration of what was set up last
  {"ask": "memory"}                             -> {"ok": true, "peak_bytes": of this process}

What can not be done answers {"ok": false, "reason": ...}; the process lives on. Seconds are CPU time of the process, wall is wall time.
Variants are ATTENTION or ATTENTION+compile; attention is one of causal (one document per row), dense (additive mask), loop (one call per
document), flex (eager) and flex-compiled.
"""
import contextlib
import gc
import json
import os
import resource
import sys
import time

answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # whatever a library prints must not stand between the answers

import torch
import torch.nn as nn
import torch.nn.functional as F

THREADS = int(os.environ.get("QUIRE_PEER_THREADS", "1"))
torch.set_num_threads(THREADS)
torch.set_num_interop_threads(1)
version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])


def build_facts():
    text = torch.__config__.show()
    facts = []
    for line in text.splitlines():
        line = line.strip(" -")
        if "Math Kernel Library" in line:
            facts.append("MKL " + line.split("Version ")[1].split(" ")[0])
        if line.startswith("Intel(R) MKL-DNN"):
            facts.append("oneDNN " + line.split(" ")[2])
        if "BLAS_INFO=" in line:
            facts.append("BLAS " + line.split("BLAS_INFO=")[1].split(",")[0])
    facts.append("capability " + torch.backends.cpu.get_cpu_capability())
    return ", ".join(facts)


class Attention:
    """Causal self-attention inside documents over q [B, H, S, D] and k, v [B, Hk, S, D]."""

    def __init__(self, how, lengths, heads, kv_heads, dtype):
        self.how, self.group = how, heads // kv_heads
        rows, tokens = len(lengths), sum(lengths[0])
        if how == "causal":
            if any(len(row) != 1 for row in lengths):
                raise ValueError("is_causal knows no documents")
        elif how == "dense":
            number = torch.stack([torch.repeat_interleave(torch.arange(len(row)), torch.tensor(row)) for row in lengths])
            places = torch.arange(tokens)
            self.mask = torch.zeros(rows, 1, tokens, tokens, dtype=dtype)
            for row in range(rows):  # one at a time: the booleans of a long row are large
                allowed = (number[row][:, None] == number[row][None, :]) & (places[:, None] >= places[None, :])
                self.mask[row, 0].masked_fill_(~allowed, float("-inf"))
        elif how == "loop":
            self.cuts = [(row, start, start + length) for row, pieces in enumerate(lengths) for start, length in starts_of(pieces)]
            self.rows = rows
        elif how in ("flex", "flex-compiled"):
            from torch.nn.attention.flex_attention import create_block_mask, flex_attention

            number = torch.stack([torch.repeat_interleave(torch.arange(len(row)), torch.tensor(row)) for row in lengths])

            def inside(b, h, q, k):
                return (number[b, q] == number[b, k]) & (q >= k)

            self.block_mask = create_block_mask(inside, rows, None, tokens, tokens, device="cpu")
            self.flex = torch.compile(flex_attention) if how == "flex-compiled" else flex_attention
        else:
            raise ValueError(f"no attention called {how}")

    def sdpa(self, q, k, v, **options):
        # Native grouped heads where the version has them and its fast kernel takes them; copies of the keys' heads else.
        if self.group > 1:
            if NATIVE_GROUPS:
                options["enable_gqa"] = True
            else:
                k = k.repeat_interleave(self.group, 1)
                v = v.repeat_interleave(self.group, 1)
        return F.scaled_dot_product_attention(q, k, v, **options)

    def __call__(self, q, k, v):
        if self.how == "causal":
            return self.sdpa(q, k, v, is_causal=True)
        if self.how == "dense":
            return self.sdpa(q, k, v, attn_mask=self.mask)
        if self.how == "loop":
            parts = [self.sdpa(q[b : b + 1, :, s:e], k[b : b + 1, :, s:e], v[b : b + 1, :, s:e], is_causal=True) for b, s, e in self.cuts]
            B, H, S, D = q.shape
            return torch.cat(parts, 2).view(1, H, B, S, D)[0].transpose(0, 1)
        return self.flex(q, k, v, block_mask=self.block_mask, enable_gqa=self.group > 1)


def starts_of(lengths):
    start = 0
    for length in lengths:
        yield start, length
        start += length


def fast_groups():
    """Whether enable_gqa is there and not slower than copies."""
    q, k = torch.randn(1, 4, 512, 64, requires_grad=True), torch.randn(1, 2, 512, 64, requires_grad=True)

    def seconds(call):
        best = 1e9
        for _ in range(5):
            start = time.process_time()
            call().sum().backward()
            best = min(best, time.process_time() - start)
        return best

    try:
        native = seconds(lambda: F.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True))
    except (TypeError, RuntimeError):
        return False
    copies = seconds(lambda: F.scaled_dot_product_attention(q, k.repeat_interleave(2, 1), k.repeat_interleave(2, 1), is_causal=True))
    return native < copies


NATIVE_GROUPS = fast_groups()


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), 1e-5)


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


class Block(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.m = m
        heads = m["heads"] + 2 * m["kv_heads"]
        self.norm1, self.norm2 = RMSNorm(m["dim"]), RMSNorm(m["dim"])
        self.qkv = nn.Linear(m["dim"], heads * m["head_dim"], bias=False)
        self.out = nn.Linear(m["heads"] * m["head_dim"], m["dim"], bias=False)
        self.gate_up = nn.Linear(m["dim"], 2 * m["ffn"], bias=False)
        self.down = nn.Linear(m["ffn"], m["dim"], bias=False)

    def forward(self, x, cos, sin, attention):
        m = self.m
        B, S, _ = x.shape
        H, K, D = m["heads"], m["kv_heads"], m["head_dim"]
        qkv = self.qkv(self.norm1(x)).view(B, S, H + 2 * K, D).transpose(1, 2)
        rotated = rotate(qkv[:, : H + K], cos, sin)
        y = attention(rotated[:, :H], rotated[:, H:], qkv[:, H + K :])
        x = x + self.out(y.transpose(1, 2).reshape(B, S, -1))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Decoder(nn.Module):
    def __init__(self, m, positions):
        super().__init__()
        self.m = m
        self.embedding = nn.Embedding(m["vocab"], m["dim"])
        self.blocks = nn.ModuleList(Block(m) for _ in range(m["layers"]))
        self.norm = RMSNorm(m["dim"])
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
        frequencies = 1.0 / 10000 ** (torch.arange(0, m["head_dim"], 2).float() / m["head_dim"])
        angles = positions.float()[:, None, :, None] * frequencies  # [B, 1, S, D / 2]
        self.register_buffer("cos", torch.cat([angles.cos(), angles.cos()], -1))
        self.register_buffer("sin", torch.cat([angles.sin(), angles.sin()], -1))

    def forward(self, tokens, targets, attention):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin, attention)
        logits = F.linear(self.norm(x), self.embedding.weight)
        return F.cross_entropy(logits.float().view(-1, self.m["vocab"]), targets.view(-1))


def set_up_step(ask):
    m, lengths = ask["model"], ask["lengths"]
    how, _, compiled = ask["variant"].partition("+")
    torch.manual_seed(ask.get("seed", 0))
    bf16 = ask["dtype"] == "bf16"
    attention = Attention(how, lengths, m["heads"], m["kv_heads"], torch.bfloat16 if bf16 else torch.float32)
    positions = torch.stack([torch.cat([torch.arange(length) for length in row]) for row in lengths])
    model = Decoder(m, positions)
    tokens = torch.randint(0, m["vocab"], positions.shape)
    targets = torch.randint(0, m["vocab"], positions.shape)
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=1e-3, betas=(0.9, 0.95), fused=True
    )
    if how == "loop" and compiled:  # hundreds of calls, which a compiler would unroll
        attention = torch.compiler.disable(attention)
    run = torch.compile(model, dynamic=False) if compiled == "compile" else model
    parameters = list(model.parameters())

    def iterate():
        with torch.autocast("cpu", dtype=torch.bfloat16) if bf16 else contextlib.nullcontext():
            loss = run(tokens, targets, attention)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return iterate


def set_up_attention(ask):
    H, K, D, lengths = ask["heads"], ask["kv_heads"], ask["head_dim"], [ask["lengths"]]
    how, _, compiled = ask["variant"].partition("+")
    torch.manual_seed(0)
    attention = Attention(how, lengths, H, K, torch.float32)
    tokens = sum(lengths[0])
    q, k, v = (torch.randn(1, heads, tokens, D, requires_grad=True) for heads in (H, K, K))
    upstream = torch.randn(1, H, tokens, D)
    run = torch.compile(lambda q, k, v: attention(q, k, v), dynamic=False) if compiled == "compile" else attention

    def iterate():
        for leaf in (q, k, v):
            leaf.grad = None
        run(q, k, v).backward(upstream)
        return 0.0

    return iterate


def timed(iterate):
    wall, cpu = time.perf_counter(), time.process_time()
    loss = iterate()
    return {"ok": True, "seconds": time.process_time() - cpu, "wall": time.perf_counter() - wall, "loss": loss}


def main():
    current = None
    for line in sys.stdin:
        ask = json.loads(line)
        try:
            if ask["ask"] == "hello":
                answer = {"ok": True, "version": "torch " + torch.__version__, "build": build_facts(), "threads": torch.get_num_threads(),
                          "grouped_heads": "enable_gqa" if NATIVE_GROUPS else "copied"}
            elif ask["ask"] in ("step", "attention"):
                current = None
                gc.collect()
                torch.compiler.reset()
                current = set_up_step(ask) if ask["ask"] == "step" else set_up_attention(ask)
                first = current()
                answer = timed(current) | {"loss": first}
            elif ask["ask"] == "iterate":
                answer = timed(current)
            elif ask["ask"] == "memory":
                answer = {"ok": True, "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
            else:
                answer = {"ok": False, "reason": "unknown request " + str(ask["ask"])}
        except Exception as error:  # whatever a version can not do is an answer
            lines = [part.strip() for part in str(error).splitlines() if part.strip()]
            answer = {"ok": False, "reason": f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]}
        answers.write(json.dumps(answer) + "\n")


main()
