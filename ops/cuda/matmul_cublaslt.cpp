// Matrix products by cuBLASLt. Its kernels differ in bits, so one is chosen for each form, types, n and k, as a function of these alone: never of the rows, of
// strides or of what was computed before. Operands that do not lie on multiples of 16 bytes are copied to where they do, so that the choice holds for them too.
// The device remembers choices as texts (Accelerator::choices); recorded ones are made again.
#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "ops/cuda/matmul.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/libraries.h"
#include "runtime/error.h"

namespace quire {

namespace {

constexpr int64_t alignment = 16;                       ///< bytes
constexpr int64_t workspace_bytes = int64_t{32} << 20;  ///< for algorithms that ask for any
constexpr uintptr_t workspace_alignment = 256;          ///< bytes, as the library demands
constexpr int64_t usual_rows = 4096;                    ///< for which algorithms are chosen

void check_cublas(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) fail<DeviceError>("cublaslt", "{}: {}", call, cublaslt().cublasLtGetStatusName(status));
}

class Operation {
 public:
  Operation(bool left_transposed, bool right_transposed) {
    check_cublas(cublaslt().cublasLtMatmulDescCreate(&get, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");  // true f32: no TF32
    set(CUBLASLT_MATMUL_DESC_TRANSA, left_transposed);
    set(CUBLASLT_MATMUL_DESC_TRANSB, right_transposed);
  }
  ~Operation() { cublaslt().cublasLtMatmulDescDestroy(get); }
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  cublasLtMatmulDesc_t get = nullptr;

 private:
  void set(cublasLtMatmulDescAttributes_t attribute, bool transposed) {
    const cublasOperation_t value = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    check_cublas(cublaslt().cublasLtMatmulDescSetAttribute(get, attribute, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
  }
};

/// Lines of memory as the library sees them: the columns of a column-major matrix.
class Layout {
 public:
  Layout(DType type, int64_t lines, int64_t columns, int64_t stride) {
    check_cublas(cublaslt().cublasLtMatrixLayoutCreate(&get, type == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F, static_cast<uint64_t>(columns), static_cast<uint64_t>(lines), stride),
                 "cublasLtMatrixLayoutCreate");
  }
  ~Layout() { cublaslt().cublasLtMatrixLayoutDestroy(get); }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;
  cublasLtMatrixLayout_t get = nullptr;
};

/// What algorithms are asked for: any that sum in one piece and find room.
class Preference {
 public:
  Preference() {
    check_cublas(cublaslt().cublasLtMatmulPreferenceCreate(&get), "cublasLtMatmulPreferenceCreate");
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace_bytes));
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE});
    for (const auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                                 CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      set(attribute, static_cast<uint32_t>(alignment));
  }
  ~Preference() { cublaslt().cublasLtMatmulPreferenceDestroy(get); }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;
  cublasLtMatmulPreference_t get = nullptr;

 private:
  template <class T> void set(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    check_cublas(cublaslt().cublasLtMatmulPreferenceSetAttribute(get, attribute, &value, sizeof value), "cublasLtMatmulPreferenceSetAttribute");
  }
};

void* align_up(char* data) { return data + (workspace_alignment - reinterpret_cast<uintptr_t>(data) % workspace_alignment) % workspace_alignment; }

int64_t aligned_stride(int64_t columns, DType type) {
  const int64_t elements = alignment / size_of(type);
  return (columns + elements - 1) / elements * elements;
}

/// What an algorithm is chosen for.
struct Form {
  DType type, c_type;
  bool a_transposed, b_transposed;  ///< a's rows are contiguous in m, b's in k
  int64_t n, k;

  explicit Form(const MatmulArgs& args)
      : type(args.type), c_type(args.c_type), a_transposed(args.a_col != 1), b_transposed(args.b_col != 1), n(args.n), k(args.k) {
    // k counts tokens, and changes from one microbatch to the next.
    if (sums_tokens()) k = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(k)));
  }
  bool sums_tokens() const { return a_transposed && !b_transposed; }
  /// m of a product that stands for all: of many tokens, or of a weight about as high as wide.
  int64_t rows() const { return a_transposed ? std::min(usual_rows, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n)))) : usual_rows; }
  std::string key() const {
    return fmt::format("matmul.{}{}.{}.{}.n={}.k{}{}", a_transposed ? 't' : 'n', b_transposed ? 't' : 'n', name_of(type), name_of(c_type), n, sums_tokens() ? "<=" : "=", k);
  }
  auto operator<=>(const Form&) const = default;
};

/// A product for the library. It is column-major: what it computes is the transposed C, from B on the left and A on the right.
struct Problem {
  Operation operation;
  Layout left, right, result;

  Problem(const Form& form, int64_t m, int64_t k, int64_t a_stride, int64_t b_stride, int64_t c_stride)
      : operation(form.b_transposed, form.a_transposed),
        left(form.type, form.b_transposed ? form.n : k, form.b_transposed ? k : form.n, b_stride),
        right(form.type, form.a_transposed ? k : m, form.a_transposed ? m : k, a_stride),
        result(form.c_type, m, form.n, c_stride) {}

  /// The one that algorithms are chosen for.
  static Problem usual(const Form& form) {
    return {form, form.rows(), form.k, aligned_stride(form.a_transposed ? form.rows() : form.k, form.type),
            aligned_stride(form.b_transposed ? form.k : form.n, form.type), aligned_stride(form.n, form.c_type)};
  }
};

struct Attribute {
  const char* name;
  cublasLtMatmulAlgoConfigAttributes_t which;
  size_t bytes;
};
/// What the library has words for of an algorithm's configuration.
constexpr Attribute attributes[] = {
  {"algorithm", CUBLASLT_ALGO_CONFIG_ID, 4},           {"tile", CUBLASLT_ALGO_CONFIG_TILE_ID, 4},          {"stages", CUBLASLT_ALGO_CONFIG_STAGES_ID, 4},
  {"split_k", CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4},     {"reduction", CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4}, {"swizzle", CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, 4},
  {"custom", CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4},   {"inner", CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2},  {"cluster", CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2},
};
using Configuration = std::array<uint32_t, std::size(attributes)>;

/// Nothing where the library does not know the algorithm.
std::optional<Configuration> configuration_of(const cublasLtMatmulAlgo_t& algorithm) {
  Configuration values{};
  for (size_t i = 0; i < values.size(); ++i) {
    size_t written = 0;
    if (cublaslt().cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attributes[i].which, &values[i], attributes[i].bytes, &written) != CUBLAS_STATUS_SUCCESS) return std::nullopt;
  }
  return values;
}

/// Sums are taken in one order, and wait for no other block's.
bool sums_in_one_piece(const Configuration& values) { return values[3] <= 1 && values[4] == CUBLASLT_REDUCTION_SCHEME_NONE; }

/// A choice as it is recorded: `library=130100 device=90 algorithm=66 tile=18 ... data=<64 bytes>`. The words are for people; the bytes, which the library lets be
/// stored for its own version, hold what it does not give words for.
std::string text_of(const std::string& prefix, const cublasLtMatmulAlgo_t& algorithm, const Configuration& values) {
  std::string text = prefix;
  for (size_t i = 0; i < values.size(); ++i) text += fmt::format(" {}={}", attributes[i].name, values[i]);
  return text + fmt::format(" data={:016x}", fmt::join(algorithm.data, ""));
}

/// The algorithm of a record; nothing where it is of another library or device, or not whole.
std::optional<cublasLtMatmulAlgo_t> parse(const std::string& text, const std::string& prefix) {
  constexpr size_t digits = 16;
  const std::string start = " data=";
  const size_t at = text.find(start);
  cublasLtMatmulAlgo_t algorithm{};
  if (!text.starts_with(prefix + " ") || at == std::string::npos || text.size() - at - start.size() != digits * std::size(algorithm.data)) return std::nullopt;
  const char* word = text.data() + at + start.size();
  for (uint64_t& value : algorithm.data) {
    const auto [end, error] = std::from_chars(word, word + digits, value, 16);
    if (error != std::errc() || end != word + digits) return std::nullopt;
    word = end;
  }
  const std::optional<Configuration> values = configuration_of(algorithm);
  if (!values || text_of(prefix, algorithm, *values) != text) return std::nullopt;
  return algorithm;
}

constexpr const char* hand_written = "hand-written";

void run_hand_written(Rank& rank, const MatmulArgs& args) {
  const bool tensor_cores = matmul_mma_can_run(args);
  rank.note_kernel(MatmulArgs::op, tensor_cores ? "mma" : "tiles");
  if (tensor_cores) matmul_mma(rank, args);
  else matmul_tiles(rank, args);
}

/// A device's handle, and its algorithms by form.
class Library final : public CudaExtension {
 public:
  struct Choice {
    std::string text;
    std::optional<cublasLtMatmulAlgo_t> algorithm;  ///< none: a hand-written kernel
  };

  explicit Library(CudaDevice& device) : device_(device), prefix_(fmt::format("library={} device={}", cublaslt().cublasLtGetVersion(), device.compute_capability())) {
    check_cublas(cublaslt().cublasLtCreate(&handle_), "cublasLtCreate");
  }
  ~Library() override { cublaslt().cublasLtDestroy(handle_); }

  const Choice& choice(const Form& form) {
    const auto found = choices_.find(form);
    if (found != choices_.end()) return found->second;
    const std::string key = form.key();
    std::optional<Choice> made;
    if (const std::string* const recorded = device_.recorded_choice(key)) {
      made = again(form, *recorded);
      if (!made) device_.note(fmt::format("{}: the recorded choice `{}` can not be made with {}; another is made: results may differ in their last bits", key, *recorded, prefix_));
    }
    if (!made) made = best(form);
    if (!made) {
      device_.note(fmt::format("{}: cuBLASLt ({}) has no algorithm that sums in one piece; a hand-written kernel is used", key, prefix_));
      made = Choice{hand_written, std::nullopt};
    }
    device_.choose(key, made->text);
    return choices_.emplace(form, std::move(*made)).first->second;
  }

  /// c (+)= a b with operands whose lines lie on multiples of `alignment`.
  void multiply(Rank& rank, const Form& form, const Choice& choice, const MatmulArgs& args, const MatmulOperand& a, const MatmulOperand& b) {
    const Problem problem(form, args.m, args.k, a.stride, b.stride, args.c_row);
    cublasLtMatmulHeuristicResult_t needs{};
    const cublasStatus_t can = check(problem, *choice.algorithm, needs);
    if (can != CUBLAS_STATUS_SUCCESS || needs.workspaceSize > static_cast<size_t>(workspace_bytes))
      fail<DeviceError>("matmul", "{}: cuBLASLt's algorithm `{}` can not compute m {}, k {} ({}, {} bytes of workspace); way out: the kernel `mma` or `tiles` for `matmul`", form.key(),
                        choice.text, args.m, args.k, cublaslt().cublasLtGetStatusName(can), needs.workspaceSize);
    Workspace workspace(rank.stack());
    const size_t room_bytes = needs.workspaceSize > 0 ? static_cast<size_t>(workspace_bytes) : 0;
    void* const room = room_bytes > 0 ? align_up(workspace.take<char>(workspace_bytes + static_cast<int64_t>(workspace_alignment))) : nullptr;
    const float one = 1, added = args.accumulate ? 1.0f : 0.0f;
    check_cublas(cublaslt().cublasLtMatmul(handle_, problem.operation.get, &one, b.data, problem.left.get, a.data, problem.right.get, &added, args.c, problem.result.get, args.c,
                                           problem.result.get, &*choice.algorithm, room, room_bytes, cuda(rank).stream()),
                 "cublasLtMatmul");
  }

 private:
  cublasStatus_t check(const Problem& problem, const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulHeuristicResult_t& needs) const {
    return cublaslt().cublasLtMatmulAlgoCheck(handle_, problem.operation.get, problem.left.get, problem.right.get, problem.result.get, problem.result.get, &algorithm, &needs);
  }
  bool runs(const Form& form, const cublasLtMatmulAlgo_t& algorithm) const {
    cublasLtMatmulHeuristicResult_t needs{};
    return check(Problem::usual(form), algorithm, needs) == CUBLAS_STATUS_SUCCESS && needs.workspaceSize <= static_cast<size_t>(workspace_bytes);
  }
  /// What a record says; nothing where it is of another library or device, or not an algorithm that sums in one piece and that they have.
  std::optional<Choice> again(const Form& form, const std::string& text) const {
    if (text == hand_written) return Choice{text, std::nullopt};
    const std::optional<cublasLtMatmulAlgo_t> algorithm = parse(text, prefix_);
    if (!algorithm || !sums_in_one_piece(*configuration_of(*algorithm)) || !runs(form, *algorithm)) return std::nullopt;
    return Choice{text, algorithm};
  }

  /// The library's first that sums in one piece.
  std::optional<Choice> best(const Form& form) const {
    const Problem problem = Problem::usual(form);
    const Preference preference;
    std::array<cublasLtMatmulHeuristicResult_t, 16> results{};
    int count = 0;
    const cublasStatus_t status = cublaslt().cublasLtMatmulAlgoGetHeuristic(handle_, problem.operation.get, problem.left.get, problem.right.get, problem.result.get, problem.result.get,
                                                                            preference.get, static_cast<int>(results.size()), results.data(), &count);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) check_cublas(status, "cublasLtMatmulAlgoGetHeuristic");
    for (const auto& result : std::span(results).first(static_cast<size_t>(count))) {
      if (result.state != CUBLAS_STATUS_SUCCESS) continue;
      const std::optional<Configuration> values = configuration_of(result.algo);
      if (values && sums_in_one_piece(*values) && runs(form, result.algo)) return Choice{text_of(prefix_, result.algo, *values), result.algo};
    }
    return std::nullopt;
  }

  CudaDevice& device_;
  const std::string prefix_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<Form, Choice> choices_;
};

/// The operand where it lies well, else a copy on the step's stack.
MatmulOperand aligned(Rank& rank, Workspace& workspace, const MatmulOperand& from, DType type) {
  if (is_aligned(from.data, from.stride, type, alignment)) return from;
  const int64_t size = size_of(type), stride = aligned_stride(from.columns, type);
  char* const to = workspace.take<char>(from.lines * stride * size);
  rank.accelerator()->copy_rows(from.data, from.stride * size, to, stride * size, from.columns * size, from.lines);
  return {to, from.lines, from.columns, stride};
}

}  // namespace

void matmul_cublaslt(Rank& rank, const MatmulArgs& args) {
  if (args.m == 0 || args.n == 0 || args.k == 0) return matmul_tiles(rank, args);
  const Form form(args);
  Library& library = cuda(rank).extension<Library>();
  const Library::Choice& choice = library.choice(form);
  if (!choice.algorithm) return run_hand_written(rank, args);
  rank.work().flops += 2 * args.m * args.n * args.k;
  Workspace workspace(rank.stack());
  const MatmulOperand a = aligned(rank, workspace, left_operand(args), args.type), b = aligned(rank, workspace, right_operand(args), args.type);
  if (is_aligned(args.c, args.c_row, args.c_type, alignment)) return library.multiply(rank, form, choice, args, a, b);
  const int64_t size = size_of(args.c_type);
  MatmulArgs inside = args;
  inside.c_row = aligned_stride(args.n, args.c_type);
  inside.c = workspace.take<char>(args.m * inside.c_row * size);
  if (args.accumulate) rank.accelerator()->copy_rows(args.c, args.c_row * size, inside.c, inside.c_row * size, args.n * size, args.m);
  library.multiply(rank, form, choice, inside, a, b);
  rank.accelerator()->copy_rows(inside.c, inside.c_row * size, args.c, args.c_row * size, args.n * size, args.m);
}

}  // namespace quire
