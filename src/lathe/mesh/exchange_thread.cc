#include "lathe/mesh/exchange_thread.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "lathe/core/clock.h"
#include "lathe/core/error.h"

namespace lathe {
namespace {

// Rounds without news in which the core is offered to others and taken back at once, before pauses begin.
constexpr int kEagerRounds = 16;
constexpr std::chrono::microseconds kShortPause{20};
constexpr std::chrono::microseconds kLongPause{200};

}  // namespace

ExchangeThread::ExchangeThread(OpenTransport open)
    : exceptions_(std::uncaught_exceptions()), thread_([this, open = std::move(open)] { run(open); }) {
  std::unique_lock lock(mutex_);
  over_.wait(lock, [this] { return open_ || error_ != nullptr; });
  if (open_) return;
  lock.unlock();
  thread_.join();
  std::rethrow_exception(error_);
}

ExchangeThread::~ExchangeThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    abandon_ = std::uncaught_exceptions() > exceptions_;
  }
  changed_.notify_all();
  thread_.join();
}

void ExchangeThread::start(std::shared_ptr<Operation> operation) {
  const std::lock_guard lock(mutex_);
  operation->start_s = steady_seconds();
  if (error_ != nullptr) {
    operation->error = error_;
    operation->end_s = operation->start_s;
    operation->done = true;
    return;
  }
  new_.push_back(std::move(operation));
  changed_.notify_all();
}

void ExchangeThread::wait(Operation& operation) {
  std::unique_lock lock(mutex_);
  over_.wait(lock, [&] { return operation.done; });
  if (operation.error != nullptr) std::rethrow_exception(operation.error);
}

void ExchangeThread::fail(const std::string& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (error_ != nullptr) return;
  }
  // First: with the error the thread may end, and the transport must know the reason by then.
  transport_->fail(reason);
  {
    const std::lock_guard lock(mutex_);
    if (error_ == nullptr)
      error_ = std::make_exception_ptr(
          Error(ErrorKind::kRetryable, "mesh", "exchanges were called off: " + reason, ""));
  }
  wake();
}

void ExchangeThread::check() {
  const std::lock_guard lock(mutex_);
  if (error_ != nullptr) std::rethrow_exception(error_);
}

void ExchangeThread::wake() {
  const std::lock_guard lock(mutex_);
  woken_ = true;
  changed_.notify_all();
}

void ExchangeThread::run(const OpenTransport& open) {
  bool clean = false;
  std::string reason;
  try {
    transport_ = open([this] { wake(); });
    {
      const std::lock_guard lock(mutex_);
      open_ = true;
    }
    over_.notify_all();
    loop();
    const std::lock_guard lock(mutex_);
    clean = error_ == nullptr && !abandon_;
  } catch (const std::exception& e) {  // thrown to those who wait
    reason = e.what();
    const std::lock_guard lock(mutex_);
    if (error_ == nullptr) error_ = std::current_exception();
  }
  if (transport_ != nullptr && !reason.empty()) transport_->fail(reason);
  // Buffers go back to their owners when their exchange is over: not before the transport lets go of them.
  if (transport_ != nullptr) transport_->close(clean);
  std::unique_lock lock(mutex_);
  if (open_) {
    if (error_ == nullptr)
      error_ = std::make_exception_ptr(Error(ErrorKind::kRetryable, "mesh", "exchanges were called off"));
    end_all(error_);
  }
  lock.unlock();
  over_.notify_all();
}

void ExchangeThread::end_all(const std::exception_ptr& error) {
  active_.insert(active_.end(), new_.begin(), new_.end());
  new_.clear();
  for (const auto& operation : active_) {
    operation->error = error;
    operation->end_s = steady_seconds();
    operation->done = true;
  }
  active_.clear();
}

void ExchangeThread::loop() {
  std::vector<std::shared_ptr<Operation>> taken;
  std::vector<std::shared_ptr<Operation>> over;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || error_ != nullptr || !new_.empty() || !active_.empty(); });
    if (error_ != nullptr || abandon_ || (stop_ && new_.empty() && active_.empty())) return;
    taken.swap(new_);
    woken_ = false;
    lock.unlock();

    bool moved = !taken.empty();
    for (auto& operation : taken) {
      active_.push_back(operation);
      begin_stage(*active_.back());
    }
    taken.clear();
    moved = transport_->progress() || moved;
    const auto rest = std::stable_partition(active_.begin(), active_.end(),
                                            [this](const auto& operation) { return !advance(*operation); });
    over.assign(std::make_move_iterator(rest), std::make_move_iterator(active_.end()));
    active_.erase(rest, active_.end());
    moved = moved || !over.empty();
    idle_rounds_ = moved ? 0 : idle_rounds_ + 1;

    lock.lock();
    for (const auto& operation : over) {
      operation->end_s = steady_seconds();
      operation->done = true;
    }
    if (!over.empty()) over_.notify_all();
    over.clear();
    if (!moved && !active_.empty()) pause(lock);
  }
}

void ExchangeThread::pause(std::unique_lock<std::mutex>& lock) {
  const auto news = [this] { return woken_ || stop_ || error_ != nullptr || !new_.empty(); };
  if (transport_->wakes()) {
    changed_.wait(lock, news);
  } else if (idle_rounds_ <= kEagerRounds) {
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
  } else {
    changed_.wait_for(lock, idle_rounds_ <= 4 * kEagerRounds ? kShortPause : kLongPause, news);
  }
}

void ExchangeThread::begin_stage(Operation& operation) {
  const Stage& stage = operation.stages[operation.stage];
  const int tag = operation.tag + static_cast<int>(operation.stage);
  // Counted before they are posted: a message may be over at once.
  const auto counts = [](const auto& message) { return message.bytes > 0; };
  operation.left = static_cast<int>(std::count_if(stage.sends.begin(), stage.sends.end(), counts) +
                                    std::count_if(stage.receives.begin(), stage.receives.end(), counts));
  for (const IncomingMessage& message : stage.receives) {
    if (message.bytes > 0)
      transport_->post_receive(message.peer, tag, message.data, message.bytes, &operation.left);
  }
  for (const OutgoingMessage& message : stage.sends) {
    if (message.bytes > 0)
      transport_->post_send(message.peer, tag, message.data, message.bytes, &operation.left);
  }
  for (const LocalCopy& copy : stage.copies) std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.bytes));
}

bool ExchangeThread::advance(Operation& operation) {
  while (operation.left == 0) {
    for (const RankOrderSum& sum : operation.stages[operation.stage].sums) run_sum(sum);
    if (++operation.stage == operation.stages.size()) return true;
    begin_stage(operation);
  }
  return false;
}

}  // namespace lathe
