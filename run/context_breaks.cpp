#include "run/context_breaks.h"

namespace quire {

Documents one_document(int64_t tokens) { return Documents::from_lengths(std::span(&tokens, 1)); }

namespace {

/// The same rank's work where the microbatch has other boundaries.
std::shared_ptr<ContextWork> work_for(const ContextWork& work, const Documents& whole) {
  auto plan = std::make_shared<ContextPlan>(*work.plan);
  for (KeyExchange& exchange : plan->exchanges) exchange = plan_key_exchange(whole, plan->shards, plan->exchange, exchange.window);
  const Documents own = documents_of(whole, plan->shards.at(static_cast<size_t>(work.rank)));
  return make_context_work(std::move(plan), work.rank, whole, own);
}

class Dropped final : public ContextTamper {
 public:
  void prepared(ContextWork& work) override { take_for(work, one_document(work.whole.tokens())); }
};

class RingStep final : public ContextTamper {
 public:
  void prepared(ContextWork& work) override {
    const std::shared_ptr<ContextWork> other = work_for(work, one_document(work.whole.tokens()));
    work.plan = other->plan;
    work.steps = other->steps;
  }
};

class WrongOwner final : public ContextTamper {
 public:
  void prepared(ContextWork&) override {}
  bool gives_gradients_to_wrong_owner() const override { return true; }
};

}  // namespace

void take_for(ContextWork& work, const Documents& whole) {
  const std::shared_ptr<ContextWork> other = work_for(work, whole);
  other->step = work.step;
  other->stage = work.stage;
  other->microbatch = work.microbatch;
  work = *other;
}

std::unique_ptr<ContextTamper> make_context_tamper(const std::string& broken) {
  if (broken == "dropped") return std::make_unique<Dropped>();
  if (broken == "ring_step") return std::make_unique<RingStep>();
  if (broken == "dkv_owner") return std::make_unique<WrongOwner>();
  return nullptr;
}

std::vector<std::string> context_leaks(ContextExchange exchange) {
  if (exchange == ContextExchange::heads) return {"dropped"};
  return {"dropped", "ring_step"};
}

}  // namespace quire
