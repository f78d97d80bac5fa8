// Built into ThreadSanitizer builds only. Debian's gRPC and spdlog are not instrumented, so their
// locks are invisible and everything that passes through them looks like a race. Reports without a
// frame of theirs still count. An environment's TSAN_OPTIONS can add suppressions, not remove
// these.

extern "C" const char* __tsan_default_suppressions();  // NOLINT(bugprone-reserved-identifier)

extern "C" const char* __tsan_default_suppressions() {  // NOLINT(bugprone-reserved-identifier)
  return "race:libgrpc.so\n"
         "race:libgrpc++.so\n"
         "race:libgpr.so\n"
         "race:libabsl\n"
         "race:libspdlog.so\n"
         "mutex:libgrpc.so\n"
         "deadlock:libgrpc.so\n";
}
