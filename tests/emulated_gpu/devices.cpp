// Makes a CPU build of torch believe in CUDA devices: their guard, their hooks and their random generators.
//
// Loaded before torch is imported, as torch remembers its first answer. Streams are the default stream and events do
// nothing, since operations on the emulated devices run at once, on the CPU.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstdlib>
#include <mutex>
#include <vector>

namespace {

c10::DeviceIndex device_count() {
  const char* number = std::getenv("EMULATED_GPUS");
  return static_cast<c10::DeviceIndex>(number == nullptr ? 0 : std::atoi(number));
}

thread_local c10::DeviceIndex current = 0;

struct EmulatedGuard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device getDevice() const override { return {c10::kCUDA, current}; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = getDevice();
    setDevice(device);
    return before;
  }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() >= 0 && device.index() < device_count(), "CUDA error: invalid device ordinal");
    current = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current = device.index(); }
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getStream(device); }
  c10::Stream getNewStream(c10::Device device, int) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return getStream(stream.device()); }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};

// A generator of a CUDA device, whose numbers are those of a CPU generator.
struct EmulatedGenerator final : c10::GeneratorImpl {
  explicit EmulatedGenerator(c10::DeviceIndex index)
      : GeneratorImpl({c10::kCUDA, index}, c10::DispatchKeySet(c10::DispatchKey::CUDA)),
        cpu_(at::make_generator<at::CPUGeneratorImpl>(c10::default_rng_seed_val)) {}

  void set_current_seed(uint64_t seed) override { cpu_.set_current_seed(seed); }
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override { return 0; }
  uint64_t current_seed() const override { return cpu_.current_seed(); }
  uint64_t seed() override { return cpu_.seed(); }
  void set_state(const c10::TensorImpl& state) override { cpu_.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return cpu_.unsafeGetGeneratorImpl()->get_state(); }

 private:
  EmulatedGenerator* clone_impl() const override {
    auto* copy = new EmulatedGenerator(device().index());
    copy->cpu_ = cpu_.clone();
    return copy;
  }
  at::Generator cpu_;
};

at::Generator new_generator(c10::DeviceIndex index) {
  return at::make_generator<EmulatedGenerator>(index < 0 ? current : index);
}

struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return device_count(); }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(c10::DeviceIndex index) const override { current = index; }
  c10::DeviceIndex current_device() const override { return current; }
  int getNumGPUs() const override { return device_count(); }
  at::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  void deviceSynchronize(c10::DeviceIndex) const override {}
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    static std::once_flag once;
    static std::vector<at::Generator> generators;
    std::call_once(once, [] {
      for (c10::DeviceIndex each = 0; each < device_count(); ++each) generators.push_back(new_generator(each));
    });
    return generators.at(index < 0 ? current : index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override { return new_generator(index); }
};

}  // namespace

namespace c10::impl {
C10_REGISTER_GUARD_IMPL(CUDA, EmulatedGuard)
}
namespace at {
REGISTER_CUDA_HOOKS(CUDAHooks)
}
