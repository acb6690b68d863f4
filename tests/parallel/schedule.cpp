#include "parallel/schedule.h"

#include "check.h"

using namespace quire;
using quire::test::check_error;

BOOST_AUTO_TEST_SUITE(schedule)

BOOST_AUTO_TEST_CASE(built_in_schedules_are_valid_keep_the_order_of_gradients_and_lower) {
  for (int64_t ranks = 1; ranks <= 6; ++ranks)
    for (int64_t chunks = 1; chunks <= 4; ++chunks)
      for (int64_t microbatches = 0; microbatches <= 13; ++microbatches)
        for (const char* name : {"gpipe", "1f1b", "interleaved_1f1b"}) {
          if (chunks > 1 && std::string_view(name) != "interleaved_1f1b") continue;
          BOOST_TEST_CONTEXT(name << ", " << ranks << " ranks, " << chunks << " chunks, " << microbatches << " microbatches") {
            const PipelineSchedule made = make_schedule(name, ranks, chunks, microbatches);
            check_schedule(made);
            BOOST_TEST(keeps_gradient_order(made));
            const PipelineProgram program = lower(made);
            BOOST_TEST(late_sends(program) == 0);
            BOOST_TEST(unoverlapped_receives(program) == 0);
          }
        }
}

BOOST_AUTO_TEST_SUITE_END()
