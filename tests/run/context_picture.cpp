// The picture of a context plan: well-formed, with every rank and every transfer in it, and of a size that does not grow with the tokens.
#include "run/context_picture.h"

#include <boost/property_tree/ptree.hpp>
#include <boost/property_tree/xml_parser.hpp>
#include <set>
#include <sstream>

#include "check.h"

using namespace quire;
using quire::test::random_lengths;

namespace {

using Tree = boost::property_tree::ptree;

/// Throws where it is not well-formed.
Tree parsed(const std::string& svg) {
  std::istringstream stream(svg);
  Tree tree;
  boost::property_tree::read_xml(stream, tree);
  return tree.get_child("svg");
}

using Transfers = std::multiset<std::tuple<int64_t, int64_t, int64_t, int64_t>>;  // step, from, to, rows

void collect(const Tree& tree, Transfers& transfers, std::set<std::string>& band_colours, int64_t& elements) {
  for (const auto& [name, child] : tree) {
    if (name == "<xmlattr>") continue;
    ++elements;
    const std::string kind = child.get<std::string>("<xmlattr>.class", "");
    if (kind == "transfer")
      transfers.insert({child.get<int64_t>("<xmlattr>.data-step"), child.get<int64_t>("<xmlattr>.data-from"), child.get<int64_t>("<xmlattr>.data-to"),
                        child.get<int64_t>("<xmlattr>.data-rows")});
    if (kind == "band") band_colours.insert(child.get<std::string>("<xmlattr>.fill"));
    collect(child, transfers, band_colours, elements);
  }
}

struct Seen {
  Transfers transfers;
  std::set<std::string> band_colours;
  int64_t elements = 0;
};

Seen seen_in(const std::string& svg) {
  Seen seen;
  collect(parsed(svg), seen.transfers, seen.band_colours, seen.elements);
  return seen;
}

Transfers planned(const ContextPlan& plan, int64_t window) {
  Transfers all;
  const std::vector<ContextStep>& steps = plan.for_window(window).steps;
  for (size_t s = 0; s < steps.size(); ++s)
    for (const KeyTransfer& transfer : steps[s].transfers) all.insert({static_cast<int64_t>(s) + 1, transfer.from, transfer.to, tokens_of(transfer.rows)});
  return all;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(context_pictures)

BOOST_AUTO_TEST_CASE(shows_every_rank_and_every_transfer) {
  std::mt19937_64 random(1);
  ContextCosts costs;
  costs.windows = {{0, 1}, {40, 1}};
  int64_t arrows = 0;
  for (const int64_t ranks : {1, 2, 3, 8, 64})
    for (const ContextLayout layout : {ContextLayout::contiguous, ContextLayout::zigzag, ContextLayout::balanced})
      for (const ContextExchange exchange : {ContextExchange::ring, ContextExchange::gather})
        for (const int64_t window : {0, 40}) {
          const std::vector<int64_t> lengths = random_lengths(random, 700);
          const Documents whole = Documents::from_lengths(lengths);
          const ContextPlan plan = make_context_plan(lengths, ranks, layout, exchange, costs);
          const Seen seen = seen_in(context_picture(plan, whole, window, {"title", "subtitle"}));
          BOOST_TEST((seen.transfers == planned(plan, window)));
          arrows += static_cast<int64_t>(seen.transfers.size());
          for (int64_t rank = 0; rank < ranks; ++rank)
            if (!plan.shards[static_cast<size_t>(rank)].empty())
              BOOST_TEST(seen.band_colours.contains(rank_colour(rank, ranks)), "rank " << rank << " of " << ranks);
        }
  BOOST_TEST(arrows > 1000);
}

BOOST_AUTO_TEST_CASE(another_plan_is_another_picture) {  // control: what the test above compares is in the picture
  const std::vector<int64_t> lengths{100, 60, 96};
  const Documents whole = Documents::from_lengths(lengths);
  ContextPlan plan = make_context_plan(lengths, 2, ContextLayout::zigzag, ContextExchange::ring);
  const Transfers right = planned(plan, 0);
  BOOST_REQUIRE(right.size() == 2U);
  plan.exchanges.front().steps.front().transfers.pop_back();
  const Seen seen = seen_in(context_picture(plan, whole, 0, {}));
  BOOST_TEST((seen.transfers != right));
  plan.shards[1].clear();
  BOOST_TEST(!seen_in(context_picture(plan, whole, 0, {})).band_colours.contains(rank_colour(1, 2)));
}

BOOST_AUTO_TEST_CASE(heads_are_exchanged_by_everybody) {
  const std::vector<int64_t> lengths{100, 28};
  const ContextPlan plan = make_context_plan(lengths, 4, ContextLayout::contiguous, ContextExchange::heads);
  BOOST_TEST(seen_in(context_picture(plan, Documents::from_lengths(lengths), 0, {})).transfers.size() == 12U);
}

BOOST_AUTO_TEST_CASE(size_does_not_grow_with_tokens) {
  std::mt19937_64 random(2);
  for (const int64_t ranks : {4, 64}) {
    std::vector<int64_t> lengths;
    for (int64_t left = 131072; left > 0; left -= lengths.back()) lengths.push_back(std::min<int64_t>(left, 1 + static_cast<int64_t>(random() % 60)));
    const ContextPlan plan = make_context_plan(lengths, ranks, ContextLayout::contiguous, ContextExchange::ring);
    const std::string svg = context_picture(plan, Documents::from_lengths(lengths), 0, {});
    BOOST_TEST(svg.size() < 400000U);
    BOOST_TEST(seen_in(svg).elements < 2000);
  }
}

BOOST_AUTO_TEST_CASE(size_does_not_grow_with_pairs_of_ranks) {
  const std::vector<int64_t> lengths{3000};
  for (const int64_t ranks : {200, 1000, 3000}) {
    const ContextPlan plan = make_context_plan(lengths, ranks, ContextLayout::contiguous, ContextExchange::gather);
    const std::string svg = context_picture(plan, Documents::from_lengths(lengths), 0, {});
    BOOST_TEST(svg.size() < 1000000U);
    BOOST_TEST(seen_in(svg).transfers.empty());
    BOOST_TEST(svg.find(" transfers between " + std::to_string(ranks) + " ranks, ") != std::string::npos);
  }
}

BOOST_AUTO_TEST_CASE(texts_are_escaped) {
  const std::vector<int64_t> lengths{8};
  const ContextPlan plan = make_context_plan(lengths, 2, ContextLayout::contiguous, ContextExchange::ring);
  const std::string svg = context_picture(plan, Documents::from_lengths(lengths), 0, {"a < b & \"c\" > d\x01", "</svg>"});
  BOOST_TEST(parsed(svg).get<std::string>("title") == "a < b & \"c\" > d ");
  BOOST_TEST(svg.find("viewBox") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(colours_differ) {
  for (const int64_t ranks : {2, 8, 9, 64}) {
    std::set<std::string> colours;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const std::string colour = rank_colour(rank, ranks);
      BOOST_TEST((colour.size() == 7U && colour[0] == '#' && colour.find_first_not_of("0123456789abcdef", 1) == std::string::npos), colour);
      colours.insert(colour);
    }
    BOOST_TEST(colours.size() == static_cast<size_t>(ranks));
  }
}

BOOST_AUTO_TEST_SUITE_END()
