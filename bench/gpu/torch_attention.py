"""PyTorch's attention at the shapes that tools/gpu_report measures Quire's at: flash, cuDNN and flex attention, forward and backward, bf16.

torch_attention.py --parts FOLDER [--shapes full|tiny] [--beside KERNELS.json]

Writes FOLDER/torch.md and FOLDER/torch.json after every line. Where PyTorch or its CUDA is missing, the report says so. Standard library and torch alone.
"""
import argparse
import inspect
import json
import os
import sys

COLUMNS = [("library", "library"), ("mask", "mask"), ("tokens", "tokens"), ("heads", "heads"), ("head_dim", "head size"), ("pass", "pass"), ("milliseconds", "ms"),
           ("lower_quartile_ms", "lower quartile"), ("upper_quartile_ms", "upper quartile"), ("teraflops", "TFLOP/s by useful pairs"), ("block_over_this", "time of `block` / this"),
           ("remark", "remark")]


class Report:
    """The form that bench/gpu/report.cpp writes."""

    def __init__(self, folder):
        self.folder, self.notes, self.rows, self.complete = folder, [], [], False
        self.save()

    def note(self, text):
        self.notes.append(text)
        self.save()

    def row(self, **cells):
        self.rows.append(cells)
        self.save()

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(path + ".new", path)

    def save(self):
        lines = ["## PyTorch beside it", ""]
        if not self.complete:
            lines += ["Not complete: what follows was found before it ended.", ""]
        for note in self.notes:
            lines += [note, ""]
        if self.rows:
            lines += ["| " + " | ".join(heading for _, heading in COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
            lines += ["| " + " | ".join(shown(row.get(key)) for key, _ in COLUMNS) + " |" for row in self.rows]
        self.write("torch.md", "\n".join(lines) + "\n")
        self.write("torch.json", json.dumps({"phase": "torch", "title": "PyTorch beside it", "complete": self.complete, "failures": [], "notes": self.notes,
                                             "tables": {"attention": self.rows}}, indent=1) + "\n")


def shown(value):
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3f}"
    return str(value).replace("|", "\\|").replace("\n", " ")


def quartiles(values):
    values = sorted(values)

    def at(share):
        place = share * (len(values) - 1)
        low = int(place)
        return values[low] + (place - low) * (values[min(low + 1, len(values) - 1)] - values[low])
    return at(0.25), at(0.5), at(0.75)


def useful_pairs(mask, tokens, lengths):
    if mask == "full":
        return tokens * tokens
    return sum(n * (n + 1) // 2 for n in ([tokens] if mask == "causal" else lengths))


def beside(path):
    """Lengths of documents, and milliseconds of `block` by (mask, head size, pass), as the phase `kernels` left them."""
    try:
        with open(path, encoding="utf-8") as file:
            tables = json.load(file)["tables"]
    except (OSError, TypeError, ValueError, KeyError):
        return [], {}
    lengths = [int(row["tokens"]) for row in tables.get("document_lengths", [])]
    block = {(row["mask"], int(row["head_dim"]), row["pass"]): row["milliseconds"] for row in tables.get("attention", []) if row["backend"] == "block" and row["milliseconds"]}
    return lengths, block


def timed(torch, work, prepare=None, samples=10):
    def once():
        given = prepare() if prepare else None
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work(given)
        end.record()
        return start, end
    for _ in range(3):
        once()
    torch.cuda.synchronize()
    pairs = [once() for _ in range(samples)]
    torch.cuda.synchronize()
    return [start.elapsed_time(end) for start, end in pairs]


def sdpa(torch, backend, mask, q, k, v, lengths):
    """A function that computes attention, and its inputs, which are leaves."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    kind = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}[backend]
    if mask == "documents":
        function = ragged_documents(torch, backend, q, k, v, lengths) if backend == "flash" else None
        if function:
            return function
        offsets = torch.tensor([0] + [sum(lengths[:i + 1]) for i in range(len(lengths))], dtype=torch.int64, device=q.device)
        # [tokens, heads, head size] with ragged documents, seen as [documents, heads, ragged, head size].
        values = [x.detach()[0].transpose(0, 1).contiguous() for x in (q, k, v)]
        ragged = [torch.nested.nested_tensor_from_jagged(x, offsets, min_seqlen=min(lengths), max_seqlen=max(lengths)).detach().requires_grad_() for x in values]
    else:
        ragged = [q, k, v]

    def attend():
        with sdpa_kernel(kind):
            inputs = [x.transpose(1, 2) for x in ragged] if mask == "documents" else ragged
            return torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=mask != "full")
    return attend, ragged


def ragged_documents(torch, backend, q, k, v, lengths):
    """Attention over documents one after the other, by the function that PyTorch has for it since 2.10: None where it has none."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    from torch.nn.attention import SDPBackend, sdpa_kernel
    kind = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}[backend]
    offsets = torch.tensor([0] + [sum(lengths[:i + 1]) for i in range(len(lengths))], dtype=torch.int32, device=q.device)
    leaves = [x.detach()[0].transpose(0, 1).contiguous().requires_grad_() for x in (q, k, v)]
    named = inspect.signature(varlen_attn).parameters
    causal = {"is_causal": True} if "is_causal" in named else {"window_size": (-1, 0)}

    def attend():
        with sdpa_kernel(kind):
            return varlen_attn(*leaves, offsets, offsets, max(lengths), max(lengths), **causal)
    return attend, leaves


def flex(torch, mask, q, k, v, lengths):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    tokens = q.shape[2]
    compiled = torch.compile(flex_attention)
    block_mask = None
    if mask != "full":
        documents = torch.repeat_interleave(torch.arange(len(lengths), device=q.device), torch.tensor(lengths, device=q.device))

        def causal(b, h, i, j):
            return i >= j

        def document(b, h, i, j):
            return (i >= j) & (documents[i] == documents[j])
        block_mask = create_block_mask(causal if mask == "causal" else document, None, None, tokens, tokens, device=str(q.device))

    def attend():
        return compiled(q, k, v, block_mask=block_mask)
    return attend, [q, k, v]


def measure(torch, report, options):
    tokens, width = (256, 128) if options.shapes == "tiny" else (16384, 2048)
    lengths, block = beside(options.beside)
    if sum(lengths) != tokens:
        lengths = [tokens // 16] * 16
    torch.manual_seed(1)
    for library in ("flash", "cudnn", "flex"):  # flex compiles for long: it comes last
        for mask in ("causal", "documents", "full"):
            for head_dim in (64, 128):
                heads = width // head_dim
                line = {"library": library, "mask": mask, "tokens": tokens, "heads": heads, "head_dim": head_dim}
                try:
                    q, k, v = (torch.randn(1, heads, tokens, head_dim, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
                    attend, leaves = flex(torch, mask, q, k, v, lengths) if library == "flex" else sdpa(torch, library, mask, q, k, v, lengths)
                    out = attend()
                    gradient = torch.randn_like(out)
                    flops = 4 * useful_pairs(mask, tokens, lengths) * heads * head_dim
                    forward = timed(torch, lambda _: attend())
                    backward = timed(torch, lambda made: torch.autograd.grad(made, leaves, gradient), attend)
                    for name, times, work in (("forward", forward, flops), ("backward", backward, 2.5 * flops)):
                        low, median, high = quartiles(times)
                        own = block.get((mask, head_dim, name))
                        report.row(**line, **{"pass": name, "milliseconds": median, "lower_quartile_ms": low, "upper_quartile_ms": high, "teraflops": work / median * 1e-9,
                                              "block_over_this": own / median if own else None, "remark": ""})
                except Exception as error:  # whatever PyTorch can not do is a line of the report
                    report.row(**line, **{"pass": "both", "remark": f"{type(error).__name__}: {str(error).splitlines()[0][:160] if str(error) else ''}"})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", required=True)
    parser.add_argument("--shapes", choices=("full", "tiny"), default="full")
    parser.add_argument("--beside", default="")
    options = parser.parse_args()
    report = Report(options.parts)
    try:
        import torch
    except Exception as error:  # an import may fail in many ways
        report.note(f"There is no PyTorch in {sys.executable} ({type(error).__name__}: {str(error)[:160]}).")
    else:
        if not torch.cuda.is_available():
            report.note(f"PyTorch {torch.__version__} of {sys.executable} sees no CUDA device.")
        else:
            report.note(f"PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, on {torch.cuda.get_device_name(0)}; bf16, batch of one row; the median of ten runs.")
            measure(torch, report, options)
    report.complete = True
    report.save()


if __name__ == "__main__":
    main()
