#pragma once

#include <array>
#include <cstdint>

namespace fastfd::scheduler {

/// Work of one lane on one server.
struct LaneWork {
  double rows = 0;
  double context = 0;  ///< sum over rows of the positions each attends to
};

/// time = fixed + per_row * rows + per_context * context, fitted to measured lanes by least squares
/// that forgets (time constant kMemory observations). Directions in which the data says nothing, as
/// when the batch never changes, follow a prior shape scaled to the data.
class CostModel {
 public:
  /// Ignores lanes without rows and times that are not positive.
  void observe(const LaneWork& work, double time_us);

  std::uint64_t num_observed() const { return num_observed_; }
  /// In microseconds once something was observed, in an arbitrary unit before.
  double predict(const LaneWork& work) const;
  /// What a lane costs however few rows it has.
  double fixed() const;
  /// predict() without the part that a lane costs however few rows it has.
  double marginal(const LaneWork& work) const;

 private:
  static constexpr int kTerms = 3;
  static constexpr double kMemory = 256;
  void fit() const;

  std::array<std::array<double, kTerms>, kTerms> xx_{};
  std::array<double, kTerms> xy_{};
  std::uint64_t num_observed_ = 0;
  // Refitted when asked, after every kRefitEvery observations at most.
  static constexpr std::uint64_t kRefitEvery = 16;
  mutable std::uint64_t fitted_at_ = 0;
  mutable std::array<double, kTerms> coefficients_ = {8.0, 1.0, 1.0 / 512};
};

}  // namespace fastfd::scheduler
