// Single operations: products beside OpenBLAS and Eigen, attention beside PyTorch, memory-bound operations beside a copy.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "bench/calm.h"

namespace quire::bench {

struct KernelsOptions {
  std::string lengths = "bench/lengths";
  std::vector<std::string> parts = {"products", "attention", "memory"};
  std::vector<std::string> dtypes = {"f32", "bf16"};  ///< of products
  int64_t pairs = 5;
  int64_t tries = 20;              ///< of a measurement of products and attention that something else on the core disturbs
  int64_t draws = 3;               ///< rows of drawn documents for attention
  std::string openblas;            ///< library; "" for the first that is found, "none" for none
  std::string peers;               ///< folder of PyTorch peers for attention; "" for none
  std::string peer_script = "tests/peers/torch_peer.py";
  double patience_seconds = 900;
  Tell progress;
};

/// Throws ConfigError for parts and dtypes that are not known, and for numbers out of range.
void check(const KernelsOptions& options);

/// One library's time for one operation.
struct KernelTime {
  std::string name;                  ///< quire, quire bf16, openblas, eigen, a peer's and its variant
  std::vector<double> seconds, ratios;  ///< of each pair; over those of the first
  double share = 0;                  ///< of the multiply-add probe (of a copy, for memory-bound operations), at the median
};

/// A product of a layer of T tokens, weight [N, K]. nt: y = x w^T; nn: dx = dy w; tn: dw = dy^T x.
struct ProductLine {
  std::string form;
  int64_t tokens = 0, outputs = 0, inputs = 0;
  double flops = 0, probe = 0;
  std::vector<KernelTime> times;
};

/// Attention over a row of 2,048 tokens, 8 heads of 64, 4 of keys, f32; flops of useful pairs: 4 and 10 times head_dim per pair and head.
struct AttentionLine {
  std::string documents;
  int64_t row = 0, document_count = 0;
  double pairs = 0, probe = 0;
  double forward = 0, backward = 0, both = 0;  ///< shares of the probe
  std::vector<KernelTime> times;               ///< forward and backward together
};

struct MemoryLine {
  std::string operation;
  double bytes = 0;                ///< that it has to read and write
  double seconds = 0, copy = 0;    ///< medians; of copying as many bytes
};

struct KernelsResult {
  std::string machine, date;
  std::vector<std::string> libraries;  ///< name and build of each peer
  std::vector<ProductLine> products;
  std::vector<AttentionLine> attention;
  std::vector<MemoryLine> memory;
  std::vector<std::string> gates;      ///< what was measured again, a line for each part
  std::string markdown() const;
  std::string to_json() const;
};

KernelsResult bench_kernels(const KernelsOptions& options);

// Its parts.
void bench_products(const KernelsOptions& options, KernelsResult& result);
void bench_attention(const KernelsOptions& options, KernelsResult& result);
void bench_memory(const KernelsOptions& options, KernelsResult& result);

}  // namespace quire::bench
