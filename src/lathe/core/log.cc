#include "lathe/core/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>

#include "lathe/core/error.h"

namespace lathe {

struct Log::Sinks {
  spdlog::logger logger{"lathe"};
};

Log::Log(bool to_stderr) : sinks_(std::make_unique<Sinks>()) {
  if (to_stderr) {
    auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
    sink->set_pattern("%^%L%$ %v");
    sinks_->logger.sinks().push_back(std::move(sink));
  }
  sinks_->logger.set_level(spdlog::level::info);
  sinks_->logger.flush_on(spdlog::level::info);
}

Log::~Log() = default;

void Log::add_file(const std::string& path) {
  try {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path);
    sink->set_pattern("%Y-%m-%dT%H:%M:%S.%e %L %v");
    sinks_->logger.sinks().push_back(std::move(sink));
  } catch (const spdlog::spdlog_ex& e) {
    config_error(path, fmt::format("cannot open the log file: {}", e.what()), "choose a writable run.dir");
  }
}

void Log::write_info(const std::string& message) {
  sinks_->logger.log(spdlog::level::info, message);
}
void Log::write_warning(const std::string& message) {
  sinks_->logger.log(spdlog::level::warn, message);
}

}  // namespace lathe
