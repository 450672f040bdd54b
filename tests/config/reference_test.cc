#include "lathe/config/reference.h"

#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "lathe/config/option_table.h"

namespace lathe {
namespace {

TEST(Reference, TheDocumentIsUpToDate) {
  std::ifstream file(LATHE_SOURCE_DIR "/docs/config.md");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_TRUE(text.str() == config_reference())
      << "docs/config.md differs from the option table: run `lathe config-reference > docs/config.md`";
}

TEST(Reference, NamesEveryKey) {
  const std::string list = config_key_list();
  for (const Option& option : option_table()) {
    EXPECT_NE(list.find("  " + option.key() + " ("), std::string::npos) << option.key();
  }
}

}  // namespace
}  // namespace lathe
