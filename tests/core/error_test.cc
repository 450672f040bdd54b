#include "lathe/core/error.h"

#include <functional>
#include <vector>

#include <gtest/gtest.h>

namespace lathe {
namespace {

Error caught(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return {ErrorKind::kInternal, "", ""};
}

TEST(Error, NamesThePlaceAndCarriesTheExitCode) {
  const Error error =
      caught([] { config_error("run.yaml:3", "seed is 'x', expected an integer", "write a number"); });
  EXPECT_STREQ(error.what(), "run.yaml:3: seed is 'x', expected an integer");
  EXPECT_EQ(error.hint(), "write a number");
  EXPECT_EQ(error.exit_code(), 2);
  EXPECT_EQ(caught([] { data_error("", "no rows"); }).exit_code(), 3);
  EXPECT_STREQ(caught([] { data_error("", "no rows"); }).what(), "no rows");
  EXPECT_EQ(caught([] { model_error("m", "x"); }).exit_code(), 4);
  EXPECT_EQ(caught([] { retryable_error("m", "x"); }).exit_code(), 75);
}

TEST(Check, MessageHoldsConditionAndValues) {
  const std::string name = "w";
  const Error error = caught([&] {
    const size_t size = 3;
    const int64_t rows = -7;
    LATHE_CHECK(rows == 2, "{}: {} of {}, {:.2f}, {}", name, rows, size, 0.5, "end");
  });
  EXPECT_EQ(error.kind(), ErrorKind::kInternal);
  EXPECT_EQ(error.exit_code(), 1);
  EXPECT_NE(std::string(error.what()).find("rows == 2: w: -7 of 3, 0.50, end"), std::string::npos)
      << error.what();
  EXPECT_NE(std::string(error.what()).find("error_test.cc:"), std::string::npos) << error.what();
}

TEST(Check, WithoutMessage) {
  EXPECT_NE(std::string(caught([] { LATHE_CHECK(1 > 2); }).what()).find("check failed: 1 > 2"),
            std::string::npos);
  EXPECT_NO_THROW(LATHE_CHECK(2 > 1, "not made: {}", 1));
}

TEST(Check, AWrongFormatStillReportsTheCheck) {
  EXPECT_NE(std::string(caught([] { LATHE_CHECK(1 > 2, "{} {}", 1); }).what()).find("1 > 2"),
            std::string::npos);
}

TEST(NearestName, FindsTypingErrors) {
  const std::vector<std::string> names{"learning_rate", "weight_decay", "warmup_steps"};
  EXPECT_EQ(nearest_name("learning_rat", names), "learning_rate");
  EXPECT_EQ(nearest_name("wieght_decay", names), "weight_decay");
  EXPECT_EQ(nearest_name("warmup", names), "");
  EXPECT_EQ(nearest_name("qqqqqqqqqq", names), "");
  EXPECT_EQ(nearest_name("x", std::vector<std::string>{}), "");
}

TEST(EditDistance, CountsInsertionsDeletionsAndReplacements) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("", "ab"), 2);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("flaw", "lawn"), 2);
}

}  // namespace
}  // namespace lathe
