// Attention by cuDNN: values, documents that do not see each other, bits, what goes to another backend. Graphs are the real library's; what they compute is the
// emulation's, operation by operation.
#include "cuda/cudnn_case.h"
#include "ops/attention_isolation.h"
#include "ops/attention_rule.h"

namespace quire::test {
namespace {

struct CudnnTest : DeviceTest {
  const bool there = has_cudnn();
};

RankOptions unordered() {
  RankOptions options = device_rank();
  options.kernels["attention_backward"] = "cudnn_unordered";
  return options;
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(cuda_cudnn_attention, CudnnTest)

BOOST_AUTO_TEST_CASE(it_holds_the_rule) {
  if (!there) return;
  Rank other(unordered());
  AttentionRule rule, unordered_rule;
  struct Sizes { int64_t heads, kv_heads, head_dim, gap; };
  for (const Sizes& s : {Sizes{1, 1, 64, 0}, {4, 2, 64, 8}, {4, 1, 64, 0}, {8, 1, 64, 0}, {2, 2, 128, 0}, {2, 1, 128, 16}}) {
    const AttentionCase c = cudnn_case(random, random_lengths(random, 40 + static_cast<int64_t>(random() % 120)), s.heads, s.kv_heads, s.head_dim, s.gap);
    rule.add<bf16>(cudnn_both(rank, c), c);
    BOOST_TEST(rank.chosen_kernels()["attention_forward"] == "cudnn");
    BOOST_TEST(rank.chosen_kernels()["attention_backward"] == "cudnn");
    unordered_rule.add<bf16>(cudnn_both(other, c), c);
    BOOST_TEST(other.chosen_kernels()["attention_backward"] == "cudnn_unordered");
  }
  rule.check();
  BOOST_TEST_CONTEXT("unordered") { unordered_rule.check(); }
}

BOOST_AUTO_TEST_CASE(documents_of_one_token_and_of_many_lengths) {
  if (!there) return;
  AttentionRule rule;
  for (const std::vector<int64_t>& lengths : std::vector<std::vector<int64_t>>{{1}, std::vector<int64_t>(70, 1), {1, 127, 128, 129, 1}, {16, 15, 17}, {300, 2, 140}}) {
    const AttentionCase c = cudnn_case(random, lengths, 1, 1, 64);
    emulation::reset_counters();
    rule.add<bf16>(cudnn_both(rank, c), c);
    BOOST_TEST(emulation::counters().graphs == 2 * static_cast<int64_t>(document_tables(c.documents.runs()).batches.size()));
  }
  rule.check();
}

BOOST_AUTO_TEST_CASE(no_bit_of_another_document_changes) {
  if (!there) return;
  const std::vector<int64_t> lengths = {20, 65, 1, 130, 34}, merged_lengths = {20, 65 + 1 + 130, 34};
  for (const int64_t head_dim : {64, 128}) {
    const AttentionCase before = cudnn_case(random, lengths, 2, 1, head_dim), other = cudnn_case(random, lengths, 2, 1, head_dim);
    AttentionCase after = before;
    copy_tokens(after, 20, other, 20, 65);
    const AttentionResult a = cudnn_both(rank, before), b = cudnn_both(rank, after);
    BOOST_TEST(finite(a));
    BOOST_TEST(same_document(before, a, b, 0, 20, 0));
    BOOST_TEST(same_document(before, a, b, 85, before.tokens(), 85));
    BOOST_TEST(!same_document(before, a, b, 20, 85, 20));
    // A document has the same bits wherever it lies, and whatever lies beside it.
    const AttentionCase alone = [&] {
      AttentionCase c = cudnn_case(random, std::vector<int64_t>{130}, 2, 1, head_dim);
      copy_tokens(c, 0, before, 86, 130);
      return c;
    }();
    BOOST_TEST(same_document(before, cudnn_both(rank, alone), a, 0, 130, 86));
    // Control: boundaries that are lost on the way to the tables of offsets and lengths. Documents 1 to 3 pass for one.
    const RunList merged(Documents::from_lengths(merged_lengths).runs());
    const DocumentBatches& broken = merged.batches(rank);
    const BoundaryTable lost = merged.table(rank, before.tokens());
    const AttentionResult x = cudnn_both(rank, before, &broken, &lost), y = cudnn_both(rank, after, &broken, &lost);
    BOOST_TEST(!same_document(before, x, y, 86, 216, 86));
    BOOST_TEST(same_document(before, x, y, 216, 250, 216));
  }
}

BOOST_AUTO_TEST_CASE(tables_that_are_wrong_are_seen) {
  if (!there) return;
  const AttentionCase c = cudnn_case(random, std::vector<int64_t>{30, 20, 10}, 1, 1, 64);
  {
    const emulation::Planted planted("cudnn.wrong_offsets");  // the second place begins a token late
    check_error<DeviceError>([&] { cudnn_both(rank, c); }, {"offsets leave a document of 20 tokens"});
    emulation::recover();
  }
  // Batches and a table that came with a message do not agree: what the table does not have gets no result, the rest is right.
  Rank clean(device_rank());
  const RunList other(Documents::from_lengths(std::vector<int64_t>{30, 10, 20}).runs());
  const BoundaryTable received = other.table(clean, c.tokens());
  const AttentionResult exact = literal<double>(c), found = cudnn_both(clean, c, nullptr, &received);
  for (size_t i = 0; i < found.forward.out.size(); ++i)
    BOOST_REQUIRE((i < 30 * 64 ? std::abs(found.forward.out[i] - exact.forward.out[i]) < 0.1 : std::isnan(found.forward.out[i])));
}

BOOST_AUTO_TEST_CASE(the_same_bits_each_time) {
  if (!there) return;
  const AttentionCase c = cudnn_case(random, std::vector<int64_t>{100, 3, 200}, 2, 1, 64);
  const AttentionResult first = cudnn_both(rank, c);
  for (const emulation::Pace pace : {emulation::Pace::late, emulation::Pace::early}) {
    emulation::Settings settings = emulation::settings();
    settings.pace = pace;
    emulation::set(settings);
    Rank again(device_rank());
    BOOST_TEST(same_result(cudnn_both(again, c), first));
    BOOST_TEST(same_result(cudnn_both(rank, c), first));
  }
  // Control: sums that meet in memory as blocks come.
  Rank other(unordered());
  const AttentionResult a = cudnn_both(other, c), b = cudnn_both(other, c);
  BOOST_TEST((a.forward.out == b.forward.out && a.backward.dk == b.backward.dk && a.backward.dv == b.backward.dv));
  BOOST_TEST(a.backward.dq != b.backward.dq);
}

BOOST_AUTO_TEST_CASE(nothing_waits_and_nothing_is_planned_twice) {
  if (!there) return;
  const auto run = [&](const std::vector<int64_t>& lengths) {
    const AttentionCase c = cudnn_case(random, lengths, 2, 1, 64);
    const AttentionOptions options{.heads = 2, .kv_heads = 1, .head_dim = 64, .backend = AttentionBackend::cudnn};
    const DocumentRuns runs = shared_runs(c.documents);
    const auto tensor = [&](const std::vector<double>& values, int64_t width) { return tensor_of<bf16>(rank, values).reshape({c.tokens(), width}); };
    const Tensor q = tensor(c.q, 128), k = tensor(c.k, 64), v = tensor(c.v, 64), dout = tensor(c.dout, 128);
    emulation::reset_counters();
    const int64_t host_reads = rank.accelerator()->host_reads();
    Tape tape(rank);
    const Value out = attention(tape, tape.leaf(q), tape.leaf(k), tape.leaf(v), runs, options);
    tape.backward(std::span(&out, 1), std::span(&dout, 1));
    const emulation::Counters counters = emulation::counters();
    BOOST_TEST(rank.accelerator()->host_reads() == host_reads);
    BOOST_TEST(counters.device_synchronizations + counters.stream_synchronizations + counters.event_synchronizations + counters.synchronous_copies == 0);
    return out.tensor.to_vector<bf16>();
  };
  run({30, 5, 100});
  const Accelerator::Choices choices = rank.accelerator()->choices();
  BOOST_TEST(choices.size() == 2u);
  for (const std::vector<int64_t>& lengths : std::vector<std::vector<int64_t>>{{1}, {30, 5, 101, 7, 6}, std::vector<int64_t>(90, 2)}) run(lengths);
  BOOST_TEST((rank.accelerator()->choices() == choices));
  run({200});
  BOOST_TEST(rank.accelerator()->choices().size() == 4u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace quire::test
