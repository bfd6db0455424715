#pragma once
#include <cstddef>
#include <cstdint>
#include <gtest/gtest.h>
#include <iterator>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/base/fd.h"
#include "runtime/device/keep_for_process.h"

namespace shoal {

/// Reads at a place (pread) by the thread that makes this, and by all that it starts from then on.
/// The kernel holds each until it is let go, as it does if a file's server is gone.
class HeldReads {
 public:
  /// It lives as long as the process, so that a thread that is left behind at a read stays there.
  static HeldReads* make() { return keep_for_process(HeldReads()); }

  bool can_be_held() const { return listener_.valid(); }
  /// Waits for a read, and holds it. False: none has come in this time.
  bool hold(int64_t ms) {
    pollfd ready = {listener_.get(), POLLIN, 0};
    held_ = {};
    return ::poll(&ready, 1, static_cast<int>(ms)) == 1 &&
           ::ioctl(listener_.get(), SECCOMP_IOCTL_NOTIF_RECV, &held_) == 0;
  }
  void let_go() const {
    seccomp_notif_resp answer = {held_.id, 0, 0, SECCOMP_USER_NOTIF_FLAG_CONTINUE};
    EXPECT_EQ(::ioctl(listener_.get(), SECCOMP_IOCTL_NOTIF_SEND, &answer), 0);
  }

 private:
  HeldReads() {
    sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_pread64, 0, 1),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    const sock_fprog program = {std::size(code), code};
    ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    listener_ = Fd(static_cast<int>(::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
                                              SECCOMP_FILTER_FLAG_NEW_LISTENER, &program)));
  }

  Fd listener_;
  seccomp_notif held_{};
};

}  // namespace shoal
