"""Times gemm_cuda_bench.cu's shapes in PyTorch (cuBLASLt): CUDA graphs, weights in turns, medians."""

import statistics

import torch

SHAPES = [("qkv", 5120, 2048), ("o", 2048, 4096), ("router", 128, 2048), ("LM head", 151936, 2048)]


def median_microseconds(rows: int, n: int, k: int) -> float:
    num_matrices = max(1, min(64, (256 << 20) // (2 * n * k)))
    weights = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) for _ in range(num_matrices)]
    a = torch.randn(rows, k, device="cuda", dtype=torch.bfloat16)
    out = torch.empty(rows, n, device="cuda", dtype=torch.bfloat16)
    calls = max(num_matrices, 4)
    torch.mm(a, weights[0].t(), out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            torch.mm(a, weights[i % num_matrices].t(), out=out)
    times = []
    for i in range(18):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        if i >= 3:
            times.append(1e3 * begin.elapsed_time(end) / calls)
    return statistics.median(times)


def main() -> None:
    for name, n, k in SHAPES:
        for rows in (1, 16, 64, 256, 1024):
            print(f"torch {name:12} rows {rows:4}  n {n:6} k {k:4}  "
                  f"{median_microseconds(rows, n, k):8.2f} us")


if __name__ == "__main__":
    main()
