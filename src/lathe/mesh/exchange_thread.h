// The communication thread of a rank: posts the messages of exchanges, moves them on, adds up what arrived, and says when
// an exchange is over, all beside the threads that compute. Only this thread calls the transport.
//
// While something is under way it looks for news: a transport that wakes it is waited for, another one is asked, first at
// once, then after pauses that grow up to a fraction of a millisecond, so that the cores stay with those who compute.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lathe/mesh/operation.h"
#include "lathe/mesh/transport.h"

namespace lathe {

class ExchangeThread {
 public:
  // Returns when the transport is open; throws what opening it threw.
  explicit ExchangeThread(OpenTransport open);
  // Exchanges under way are finished first, unless the stack is being unwound: then they are called off.
  ~ExchangeThread();
  ExchangeThread(const ExchangeThread&) = delete;
  ExchangeThread& operator=(const ExchangeThread&) = delete;

  // Any thread. Operations begin in the order in which they come.
  void start(std::shared_ptr<Operation> operation);
  // Waits until the operation is over, throws its error.
  void wait(Operation& operation);
  // What is under way and what comes later fails with this reason.
  void fail(const std::string& reason);
  // Throws it.
  void check();

 private:
  void run(const OpenTransport& open);
  void loop();
  void begin_stage(Operation& operation);
  // True: the operation is over.
  bool advance(Operation& operation);
  void end_all(const std::exception_ptr& error);
  void pause(std::unique_lock<std::mutex>& lock);
  void wake();

  const int exceptions_;
  std::unique_ptr<Transport> transport_;  // made and destroyed by the thread

  std::mutex mutex_;
  std::condition_variable changed_;  // for the thread
  std::condition_variable over_;     // for those who wait
  std::vector<std::shared_ptr<Operation>> new_;
  std::exception_ptr error_;  // every exchange from now on fails with it
  bool open_ = false;
  bool woken_ = false;
  bool stop_ = false;
  bool abandon_ = false;

  // The thread's own.
  std::vector<std::shared_ptr<Operation>> active_;
  int idle_rounds_ = 0;
  std::thread thread_;
};

}  // namespace lathe
