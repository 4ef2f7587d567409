#include "core/shared_weights.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <tvm/ffi/error.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/arena.h"

namespace collage {
namespace {

constexpr char kSymbol[] = "collage_weights";
constexpr std::string_view kMagic = "COLLAGEW";
constexpr std::size_t kEntry = sizeof(Digest) + 2 * sizeof(std::uint64_t);
constexpr std::size_t kPrefix = kMagic.size() + sizeof(std::uint64_t);
constexpr std::uintptr_t kPage = 4096;

std::uint64_t ReadNumber(const char* place) {
  std::uint64_t number = 0;
  std::memcpy(&number, place, sizeof(number));
  return number;
}

}  // namespace

// The table of one loaded library.
class WeightTable {
 public:
  // Takes over `library`. Throws a ffi ValueError for a damaged table.
  WeightTable(void* library, const char* start) : library_(library) {
    std::size_t size = SizeOf(start);
    if (size < kPrefix || std::string_view(start, kMagic.size()) != kMagic) Refuse();
    std::uint64_t count = ReadNumber(start + kMagic.size());
    if (count > (size - kPrefix) / kEntry) Refuse();
    for (const char* entry = start + kPrefix; count-- > 0; entry += kEntry) {
      Digest digest{};
      std::memcpy(digest.data(), entry, digest.size());
      std::uint64_t offset = ReadNumber(entry + digest.size());
      std::uint64_t length = ReadNumber(entry + digest.size() + sizeof(offset));
      if (offset > size || length > size - offset) Refuse();
      weights_[digest] = {start + offset, length};
    }
  }
  WeightTable(const WeightTable&) = delete;
  WeightTable& operator=(const WeightTable&) = delete;
  ~WeightTable() { dlclose(library_); }

  std::optional<std::string_view> Find(const Digest& digest) const {
    auto weight = weights_.find(digest);
    if (weight == weights_.end()) return std::nullopt;
    return weight->second;
  }

 private:
  static std::size_t SizeOf(const char* start) {
    Dl_info info{};
    void* symbol = nullptr;
    if (dladdr1(start, &info, &symbol, RTLD_DL_SYMENT) == 0 || symbol == nullptr) return 0;
    return static_cast<const ElfW(Sym)*>(symbol)->st_size;
  }

  // The destructor does not run after a throw in the constructor.
  [[noreturn]] void Refuse() const {
    dlclose(library_);
    TVM_FFI_THROW(ValueError) << "the executable's table of weights is damaged";
    TVM_FFI_UNREACHABLE();
  }

  void* library_;
  std::map<Digest, std::string_view> weights_;
};

namespace {

using Table = std::shared_ptr<const WeightTable>;

struct Tables {
  std::mutex mutex;
  std::vector<std::weak_ptr<const WeightTable>> opened;
  std::map<const char*, std::weak_ptr<const char>> copies;  // by the weight's address
};

Tables& All() {
  static auto* tables = new Tables();
  return *tables;
}

std::vector<std::string> LoadedLibraries() {
  std::vector<std::string> names;
  dl_iterate_phdr(
      [](dl_phdr_info* library, std::size_t, void* list) {
        static_cast<std::vector<std::string>*>(list)->emplace_back(library->dlpi_name);
        return 0;
      },
      &names);
  return names;
}

// The table of a library that is loaded by this name; null without one.
Table OpenTable(const std::string& name) {
  void* library = dlopen(name.c_str(), RTLD_NOLOAD | RTLD_LAZY);
  if (library == nullptr) return nullptr;
  const void* start = dlsym(library, kSymbol);
  if (start != nullptr) {
    return std::make_shared<const WeightTable>(library, static_cast<const char*>(start));
  }
  dlclose(library);
  return nullptr;
}

std::optional<SharedWeight> FindIn(const Table& table, const Digest& digest) {
  if (table == nullptr) return std::nullopt;
  std::optional<std::string_view> bytes = table->Find(digest);
  if (!bytes) return std::nullopt;
  return SharedWeight(table, *bytes);
}

}  // namespace

SharedWeight FindSharedWeight(const Digest& digest) {
  std::lock_guard<std::mutex> lock(All().mutex);
  for (const std::weak_ptr<const WeightTable>& opened : All().opened) {
    if (std::optional<SharedWeight> weight = FindIn(opened.lock(), digest)) return *weight;
  }
  for (const std::string& name : LoadedLibraries()) {
    if (name.empty()) continue;
    Table table = OpenTable(name);
    if (std::optional<SharedWeight> weight = FindIn(table, digest)) {
      All().opened.push_back(table);
      return *weight;
    }
  }
  TVM_FFI_THROW(ValueError) << "the executable lacks a weight that one of its kernels refers to";
  TVM_FFI_UNREACHABLE();
}

std::shared_ptr<const char> SharedWeight::Copy() const {
  std::lock_guard<std::mutex> lock(All().mutex);
  std::weak_ptr<const char>& copy = All().copies[data()];
  if (std::shared_ptr<const char> memory = copy.lock()) return memory;
  Bytes bytes = Allocate(size());
  std::memcpy(bytes.get(), data(), size());
  ReleasePages();
  // The table belongs to the copy: while the copy is there, no other library is at the weight's address.
  std::shared_ptr<const char> memory(bytes.release(), [table = table_](const char* data) {
    FreeMemory()(const_cast<char*>(data));
  });
  copy = memory;
  return memory;
}

void SharedWeight::ReleasePages() const {
  // Whole pages only: what is beside the weight belongs to others.
  std::size_t skipped = (kPage - reinterpret_cast<std::uintptr_t>(data()) % kPage) % kPage;
  if (skipped >= size()) return;
  std::size_t length = (size() - skipped) / kPage * kPage;
  if (length > 0) madvise(const_cast<char*>(data()) + skipped, length, MADV_DONTNEED);
}

}  // namespace collage
