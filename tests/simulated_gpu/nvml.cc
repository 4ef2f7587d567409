// NVML of the simulated GPU. SIMULATED_NVML says what it tells, as "word=value" with blanks between:
//   mig=1g.10gb (the second of two slices is ours)  sm=1410  power=500  persistence=1  mode=3  reasons=4
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr int kNotSupported = 3, kNotFound = 6;

std::string Said(const std::string& word) {
  const char* all = std::getenv("SIMULATED_NVML");
  if (all == nullptr) return "";
  std::string text = std::string(" ") + all + " ";
  std::size_t start = text.find(" " + word + "=");
  if (start == std::string::npos) return "";
  start += word.size() + 2;
  return text.substr(start, text.find(' ', start) - start);
}

unsigned Number(const char* word, unsigned otherwise) {
  std::string said = Said(word);
  return said.empty() ? otherwise : static_cast<unsigned>(std::stoul(said));
}

int Write(char* to, unsigned size, const std::string& text) {
  std::snprintf(to, size, "%s", text.c_str());
  return 0;
}

char card, slices[2];

}  // namespace

extern "C" {

int nvmlInit_v2() { return 0; }

int nvmlDeviceGetHandleByPciBusId_v2(const char*, void** device) {
  *device = &card;
  return 0;
}

int nvmlDeviceGetName(void* device, char* name, unsigned size) {
  if (device == &card) return Write(name, size, "simulated GPU");
  return Write(name, size, "simulated GPU MIG " + (device == &slices[1] ? Said("mig") : "7g.80gb"));
}

int nvmlSystemGetDriverVersion(char* text, unsigned size) { return Write(text, size, "580.1"); }

int nvmlDeviceGetUUID(void* device, char* text, unsigned size) {
  return Write(text, size,
               device == &slices[1] ? "MIG-00010203-0405-0607-0809-0a0b0c0d0e0f"
                                    : "MIG-ffffffff-0405-0607-0809-0a0b0c0d0e0f");
}

int nvmlDeviceGetMigMode(void*, unsigned* current, unsigned* pending) {
  *current = *pending = Said("mig").empty() ? 0 : 1;
  return 0;
}

int nvmlDeviceGetMaxMigDeviceCount(void*, unsigned* count) {
  *count = 7;
  return 0;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void*, unsigned place, void** slice) {
  if (place > 1) return kNotFound;
  *slice = &slices[place];
  return 0;
}

int nvmlDeviceGetClockInfo(void*, int, unsigned* mhz) {
  *mhz = Number("sm", 1980);
  return 0;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* reasons) {
  *reasons = Number("reasons", 1);  // idle
  return 0;
}

int nvmlDeviceGetApplicationsClock(void*, int kind, unsigned* mhz) {
  *mhz = kind == 1 ? Number("sm", 1980) : 2619;
  return 0;
}

int nvmlDeviceGetDefaultApplicationsClock(void*, int kind, unsigned* mhz) {
  *mhz = kind == 1 ? 1980 : 2619;
  return 0;
}

int nvmlDeviceGetEnforcedPowerLimit(void*, unsigned* milliwatts) {
  if (!Said("mig").empty()) return kNotSupported;
  *milliwatts = 1000 * Number("power", 700);
  return 0;
}

int nvmlDeviceGetPersistenceMode(void*, unsigned* mode) {
  *mode = Number("persistence", 0);
  return 0;
}

int nvmlDeviceGetComputeMode(void*, unsigned* mode) {
  *mode = Number("mode", 0);
  return 0;
}

}  // extern "C"
