// SPDX-License-Identifier: Apache-2.0
#include "comm/communicator.hpp"

#include <exception>
#include <utility>

#include "comm/progress.hpp"
#include "core/error.hpp"

namespace zea {

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw CommError(std::string(call) + " failed: " + std::string(text, length));
}

Communicator::Communicator(MPI_Comm owned, std::string name, std::shared_ptr<Progress> progress)
    : handle_(owned), name_(std::move(name)), progress_(std::move(progress)) {
  if (handle_ == MPI_COMM_NULL) return;
  check_mpi(MPI_Comm_set_errhandler(handle_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check_mpi(MPI_Comm_rank(handle_, &rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(handle_, &size_), "MPI_Comm_size");
}

Communicator Communicator::duplicate(MPI_Comm parent, const std::string& name) {
  MPI_Comm owned = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(parent, &owned), "MPI_Comm_dup");
  return Communicator(owned, name, std::make_shared<Progress>());
}

Communicator Communicator::duplicate(const std::string& name) const {
  MPI_Comm owned = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(handle_, &owned), "MPI_Comm_dup");
  return Communicator(owned, name, progress_);
}

Communicator Communicator::split(int color, const std::string& name) const {
  MPI_Comm owned = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(handle_, color, rank_, &owned), "MPI_Comm_split");
  return Communicator(owned, name, progress_);
}

Communicator Communicator::of_ranks(const std::vector<int>& ranks, const std::string& name) const {
  constexpr int kTag = 0;
  MPI_Group all = MPI_GROUP_NULL, some = MPI_GROUP_NULL;
  check_mpi(MPI_Comm_group(handle_, &all), "MPI_Comm_group");
  check_mpi(MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &some),
            "MPI_Group_incl");
  MPI_Comm owned = MPI_COMM_NULL;
  check_mpi(MPI_Comm_create_group(handle_, some, kTag, &owned), "MPI_Comm_create_group");
  MPI_Group_free(&some);
  MPI_Group_free(&all);
  return Communicator(owned, name, progress_);
}

Communicator Communicator::reordered(int key, const std::string& name) const {
  constexpr int kAll = 0;
  MPI_Comm owned = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split(handle_, kAll, key, &owned), "MPI_Comm_split");
  return Communicator(owned, name, progress_);
}

int Communicator::lowest_rank_of_node() const {
  MPI_Comm node = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(handle_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &node),
            "MPI_Comm_split_type");
  int lowest = rank_;
  check_mpi(MPI_Bcast(&lowest, 1, MPI_INT, 0, node), "MPI_Bcast");
  check_mpi(MPI_Comm_free(&node), "MPI_Comm_free");
  return lowest;
}

Communicator::Communicator(Communicator&& other) noexcept
    : handle_(std::exchange(other.handle_, MPI_COMM_NULL)),
      rank_(other.rank_),
      size_(other.size_),
      limits_sms_(other.limits_sms_),
      name_(std::move(other.name_)),
      progress_(std::move(other.progress_)) {}

Communicator& Communicator::operator=(Communicator&& other) noexcept {
  if (this == &other) return *this;
  release();
  handle_ = std::exchange(other.handle_, MPI_COMM_NULL);
  rank_ = other.rank_;
  size_ = other.size_;
  limits_sms_ = other.limits_sms_;
  name_ = std::move(other.name_);
  progress_ = std::move(other.progress_);
  return *this;
}

Communicator::~Communicator() {
  release();
}

void Communicator::release() noexcept {
  if (handle_ != MPI_COMM_NULL && std::uncaught_exceptions() == 0) MPI_Comm_free(&handle_);
  handle_ = MPI_COMM_NULL;
}

}  // namespace zea
