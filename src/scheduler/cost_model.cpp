#include "scheduler/cost_model.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace fastfd::scheduler {
namespace {

constexpr std::array<double, 3> kPriorShape = {8.0, 1.0, 1.0 / 512};
/// Weight of the prior beside the data, relative to each term's own energy.
constexpr double kRidge = 0.01;

/// Gaussian elimination with pivoting; the ridge keeps the matrix regular.
std::array<double, 3> solve(std::array<std::array<double, 3>, 3> a, std::array<double, 3> b) {
  for (int column = 0; column < 3; ++column) {
    int pivot = column;
    for (int row = column + 1; row < 3; ++row) {
      if (std::abs(a[row][column]) > std::abs(a[pivot][column])) {
        pivot = row;
      }
    }
    std::swap(a[column], a[pivot]);
    std::swap(b[column], b[pivot]);
    for (int row = column + 1; row < 3; ++row) {
      const double factor = a[row][column] / a[column][column];
      for (int k = column; k < 3; ++k) {
        a[row][k] -= factor * a[column][k];
      }
      b[row] -= factor * b[column];
    }
  }
  std::array<double, 3> x{};
  for (int row = 2; row >= 0; --row) {
    double sum = b[row];
    for (int k = row + 1; k < 3; ++k) {
      sum -= a[row][k] * x[k];
    }
    x[row] = sum / a[row][row];
  }
  return x;
}

}  // namespace

void CostModel::observe(const LaneWork& work, double time_us) {
  if (work.rows <= 0 || !(time_us > 0)) {
    return;
  }
  const std::array<double, kTerms> x = {1.0, work.rows, work.context};
  constexpr double kKeep = 1.0 - 1.0 / kMemory;
  for (int i = 0; i < kTerms; ++i) {
    for (int j = 0; j < kTerms; ++j) {
      xx_[i][j] = xx_[i][j] * kKeep + x[i] * x[j];
    }
    xy_[i] = xy_[i] * kKeep + x[i] * time_us;
  }
  ++num_observed_;
}

void CostModel::fit() const {
  if (num_observed_ == 0 || (fitted_at_ != 0 && num_observed_ < fitted_at_ + kRefitEvery)) {
    return;
  }
  fitted_at_ = num_observed_;
  // Scale of the prior: the total time it predicts for what was seen is the total time measured.
  double prior_total = 0;
  for (int i = 0; i < kTerms; ++i) {
    prior_total += kPriorShape[i] * xx_[0][i];
  }
  const double scale = xy_[0] / prior_total;
  auto a = xx_;
  auto b = xy_;
  for (int i = 0; i < kTerms; ++i) {
    const double weight = kRidge * xx_[i][i] + 1e-9;
    a[i][i] += weight;
    b[i] += weight * scale * kPriorShape[i];
  }
  coefficients_ = solve(a, b);
  // Noise must not make more work look cheaper.
  for (int i = 0; i < kTerms; ++i) {
    coefficients_[i] = std::max(coefficients_[i], 1e-3 * scale * kPriorShape[i]);
  }
}

double CostModel::fixed() const {
  fit();
  return coefficients_[0];
}

double CostModel::predict(const LaneWork& work) const {
  return work.rows <= 0 ? 0.0 : fixed() + marginal(work);
}

double CostModel::marginal(const LaneWork& work) const {
  fit();
  return coefficients_[1] * work.rows + coefficients_[2] * work.context;
}

}  // namespace fastfd::scheduler
