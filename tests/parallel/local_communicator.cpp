// Ranks as threads: order, rendezvous, sizes, abort, watchdog, split groups.
#include <atomic>
#include <mutex>
#include <set>

#include "check.h"
#include "collective_case.h"

namespace quire::test {
namespace {

Tensor of(Rank& rank, std::vector<float> values) { return Tensor::from<float>(rank, {static_cast<int64_t>(values.size())}, values); }

BOOST_AUTO_TEST_CASE(labels_say_what_a_message_is) {
  BOOST_TEST(to_string(MessageLabel{MessageKind::activations, 17, 2, 3}) == "activations for stage 2, microbatch 3, step 17");
  BOOST_TEST(to_string(MessageLabel{.kind = MessageKind::activation_gradients, .step = 4}) == "activation gradients for step 4");
  BOOST_TEST(to_string(MessageLabel{.purpose = "barrier"}) == "control messages (barrier)");
  std::set<std::string_view> names;
  for (int kind = 0; kind < message_kinds; ++kind) names.insert(name_of(static_cast<MessageKind>(kind)));
  BOOST_TEST(names.size() == message_kinds);
}

BOOST_AUTO_TEST_CASE(messages_arrive_in_the_order_of_sending_whichever_side_comes_first) {
  for (const int late : {0, 1})
    run_local(2, {}, [&](Communicator& world) {
      Rank rank;
      if (world.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      std::vector<Request> requests;
      std::vector<Tensor> tensors;
      for (int i = 0; i < 50; ++i) {
        tensors.push_back(of(rank, std::vector<float>(static_cast<size_t>(1 + i % 7), world.rank() == 0 ? static_cast<float>(i) : -1)));
        requests.push_back(world.rank() == 0 ? world.send(tensors.back(), 1, {}) : world.receive(tensors.back(), 0, {}));
      }
      for (const Request& request : requests) request.wait();
      for (int i = 0; i < 50; ++i) require(tensors[static_cast<size_t>(i)].to_vector<float>()[0] == static_cast<float>(i), "order of messages");
    });
}

BOOST_AUTO_TEST_CASE(a_send_is_done_only_when_it_was_received) {
  std::atomic<bool> looked{false};
  run_local(2, {}, [&](Communicator& world) {
    Rank rank;
    const Tensor values = of(rank, {1, 2, 3});
    if (world.rank() == 0) {
      const Request sent = world.send(values, 1, {});
      for (int i = 0; i < 5; ++i) require(!sent.done(), "nobody has asked for the message yet");
      looked = true;
      sent.wait();
      require(sent.done(), "received");
    } else {
      while (!looked) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      world.receive(values, 0, {}).wait();
    }
  });
  BOOST_TEST(Request().done());
}

BOOST_AUTO_TEST_CASE(a_request_keeps_its_tensor_alive) {
  run_local(2, {}, [&](Communicator& world) {
    Rank rank({.poison = true});
    if (world.rank() == 0) {
      const Request sent = world.send(of(rank, {4, 5}), 1, {});
      const Tensor reuse = of(rank, {-1, -1});  // would lie where the message lay
      world.barrier();
      sent.wait();
    } else {
      world.receive(of(rank, {0, 0}), 0, {});  // nobody holds this request or its tensor
      const Tensor reuse = of(rank, {-1, -1});
      world.barrier();
      require(reuse.to_vector<float>() == std::vector<float>({-1, -1}), "a message came into memory that was given to something else");
    }
  });
}

BOOST_AUTO_TEST_CASE(another_size_or_kind_fails_on_the_receiving_rank) {
  for (const bool other_kind : {false, true}) {
    std::atomic<bool> sender_is_well{false};
    const auto body = [&](Communicator& world) {
      Rank rank;
      if (world.rank() == 0) {
        world.send(of(rank, {1, 2, 3}), 1, {MessageKind::activations, 5, 1, 2}).wait();
        sender_is_well = true;
      } else {
        const Tensor into = other_kind ? of(rank, {0, 0, 0}) : of(rank, {0, 0, 0, 0});
        world.receive(into, 0, {other_kind ? MessageKind::boundaries : MessageKind::activations, 5, 1, 2}).wait();
      }
    };
    check_error<CommunicationError>([&] { run_local(2, {}, body); },
                                    {"rank 1 expects", other_kind ? "boundaries" : "16 bytes", "rank 0",
                                     "activations for stage 1, microbatch 2, step 5 of 12 bytes"});
    BOOST_TEST(sender_is_well);
  }
}

BOOST_AUTO_TEST_CASE(traffic_is_counted_by_kind_on_the_sending_rank) {
  run_local(2, {}, [](Communicator& world) {
    Rank rank;
    const int other = 1 - world.rank();
    for (int i = 0; i < 3 + world.rank(); ++i) {
      const Request sent = world.send(of(rank, {1, 2}), other, {MessageKind::activations});
      if (i < 3) world.receive(of(rank, {0, 0}), other, {MessageKind::activations}).wait();
      if (i == 3 && world.rank() == 1) sent.wait();
    }
    if (world.rank() == 0) world.receive(of(rank, {0, 0}), 1, {MessageKind::activations}).wait();
    const TrafficCounters::Entry sent = world.traffic()[MessageKind::activations];
    require(sent.messages == 3 + world.rank() && sent.bytes == 8 * sent.messages, "messages and bytes");
    require(world.traffic()[MessageKind::boundaries].messages == 0, "other kinds");
  });
}

BOOST_AUTO_TEST_CASE(messages_to_nobody_are_refused) {
  run_local(2, {}, [](Communicator& world) {
    Rank rank;
    const Tensor values = of(rank, {1});
    int refused = 0;
    for (const int to : {-1, 2, world.rank()}) {
      try {
        world.send(values, to, {});
      } catch (const StateError&) {
        ++refused;
      }
      try {
        world.receive(values, to, {});
      } catch (const StateError&) {
        ++refused;
      }
    }
    require(refused == 6, "refusals");
    require(world.traffic()[MessageKind::control].messages == 0, "what is refused is not counted");
  });
}

BOOST_AUTO_TEST_CASE(the_first_error_wakes_everybody_and_is_thrown_on) {
  std::atomic<int> aborted{0};
  const auto body = [&](Communicator& world) {
    Rank rank;
    if (world.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      fail<DataError>("test", "the first error");
    }
    try {
      if (world.rank() == 0) world.receive(of(rank, {0}), 1, {}).wait();
      if (world.rank() == 2) world.send(of(rank, {0}), 1, {}).wait();
      if (world.rank() == 3)
        for (;;) {
          world.poll();
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    } catch (const AbortedError& error) {
      if (std::string(error.what()).find("the first error") != std::string::npos) ++aborted;
      if (world.rank() == 0) fail<StateError>("test", "a later error");
      throw;
    }
  };
  check_error<DataError>([&] { run_local(4, {}, body); }, {"the first error"});
  BOOST_TEST(aborted == 3);
}

BOOST_AUTO_TEST_CASE(an_error_wins_over_ranks_that_were_only_aborted_before_it) {
  const auto body = [&](Communicator& world) {
    if (world.rank() == 0) world.abort("stop");
    if (world.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      fail<DataError>("test", "a real one");
    }
    world.barrier();
  };
  check_error<DataError>([&] { run_local(3, {}, body); }, {"a real one"});
  check_error<AbortedError>([&] { run_local(1, {}, [](Communicator& world) { world.abort("stop"); world.poll(); }); }, {"stop"});
}

/// Runs four ranks of which 1 waits for 0, 2 waits to send to 3, 3 waits in a barrier of a split group, and 0 does not come; what they say up to the
/// seconds.
std::set<std::string> sentences_of_waiting_ranks(double seconds, std::atomic<int>& expired, std::atomic<int>& aborted) {
  std::set<std::string> sentences;
  std::atomic<bool> over{false};
  const auto report = [&](const std::string& sentence) { sentences.insert(sentence.substr(0, sentence.find(" since"))); };
  const auto body = [&](Communicator& world) {
    Rank rank;
    const std::unique_ptr<Communicator> odd = world.split(world.rank() % 2);
    world.barrier();
    try {
      while (world.rank() == 0 && !over) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      if (world.rank() == 1) {
        world.set_watchdog(seconds);
        world.receive(of(rank, {0}), 0, {MessageKind::activations, 17, 1, 3}).wait();
      }
      if (world.rank() == 2) world.send(of(rank, {0}), 3, {MessageKind::gradients, 17}).wait();
      if (world.rank() == 3) {
        odd->set_watchdog(0);
        odd->barrier();
      }
    } catch (const AbortedError&) {
      ++aborted;
      throw;
    } catch (const CommunicationError&) {
      ++expired;
      over = true;
      throw;
    }
  };
  check_error<CommunicationError>([&] { run_local(4, {.watchdog_seconds = 60, .report = report}, body); },
                                  {"rank 1 waited for activations for stage 1, microbatch 3, step 17 from rank 0", "0.5 s"});
  return sentences;
}

BOOST_AUTO_TEST_CASE(a_wait_without_end_is_told_by_every_waiting_rank_and_ends) {
  std::atomic<int> expired{0}, aborted{0};
  const std::set<std::string> sentences = sentences_of_waiting_ranks(0.5, expired, aborted);
  const std::set<std::string> expected = {"rank 1 waits for activations for stage 1, microbatch 3, step 17 from rank 0",
                                          "rank 2 waits to send gradients for step 17 to rank 3",
                                          "rank 3 waits for control messages (barrier) from rank 1"};
  BOOST_TEST(sentences == expected, boost::test_tools::per_element());
  BOOST_TEST(expired == 1);
  BOOST_TEST(aborted == 2);
}

BOOST_AUTO_TEST_CASE(a_message_that_comes_in_time_is_no_reason_to_give_up) {
  std::atomic<int> reports{0};
  run_local(2, {.watchdog_seconds = 1, .report = [&](const std::string&) { ++reports; }}, [](Communicator& world) {
    Rank rank;
    for (int i = 0; i < 5; ++i) {  // together longer than the watchdog's time, each wait shorter
      if (world.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(250));
      world.barrier();
    }
  });
  BOOST_TEST(reports == 0);
}

BOOST_AUTO_TEST_CASE(groups_split_in_any_way_are_used_in_any_order) {
  for (int ranks = 2; ranks <= 5; ++ranks)
    run_local(ranks, {}, [&](Communicator& world) {
      Rank rank;
      std::mt19937_64 shared(static_cast<uint64_t>(ranks));
      std::vector<std::unique_ptr<Communicator>> groups;
      for (int i = 0; i < 4; ++i) {
        std::vector<int> colours;
        for (int r = 0; r < ranks; ++r) colours.push_back(static_cast<int>(shared() % 3) - 1);
        groups.push_back(world.split(colours[static_cast<size_t>(world.rank())]));
        std::vector<int> members;
        for (int r = 0; r < ranks; ++r)
          if (colours[static_cast<size_t>(r)] == colours[static_cast<size_t>(world.rank())]) members.push_back(r);
        require(groups.back()->size() == static_cast<int>(members.size()), "size of a group");
        for (int r = 0; r < groups.back()->size(); ++r)
          require(groups.back()->world_rank(r) == members[static_cast<size_t>(r)], "a group keeps the order of ranks");
        require(groups.back()->world_rank() == world.rank(), "a rank's number in the job");
      }
      groups.push_back(groups[0]->split(groups[0]->rank() % 2));
      for (uint64_t round = 0; round < 10; ++round) collective_round(rank, *groups[shared() % groups.size()], round, 2000);
      // Messages of several groups between the same two ranks, under way at once, do not mix.
      std::vector<Request> requests;
      std::vector<std::pair<Tensor, float>> received;
      for (size_t g = 0; g < groups.size(); ++g)
        for (int other = 0; other < groups[g]->size(); ++other) {
          if (other == groups[g]->rank()) continue;
          received.emplace_back(of(rank, {-1}), static_cast<float>(100 * g + static_cast<size_t>(other)));
          requests.push_back(groups[g]->receive(received.back().first, other, {}));
        }
      for (size_t g = groups.size(); g-- > 0;)
        for (int other = 0; other < groups[g]->size(); ++other)
          if (other != groups[g]->rank())
            requests.push_back(groups[g]->send(of(rank, {static_cast<float>(100 * g + static_cast<size_t>(groups[g]->rank()))}), other, {}));
      for (const Request& request : requests) request.wait();
      for (const auto& [tensor, expected] : received) require(tensor.to_vector<float>()[0] == expected, "messages of groups do not mix");
    });
}

BOOST_AUTO_TEST_CASE(a_text_is_said_first_by_one_rank) {
  std::atomic<int> first{0};
  run_local(5, {}, [&](Communicator& world) {
    for (int i = 0; i < 20; ++i) first += world.first_to_say("text " + std::to_string(i));
    const std::unique_ptr<Communicator> group = world.split(world.rank() % 2);
    first += group->first_to_say("text 0");
  });
  BOOST_TEST(first == 20);
}

}  // namespace
}  // namespace quire::test
