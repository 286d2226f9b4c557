// A double of libcuda.so.1, which is looked for by its name alone.
extern "C" __attribute__((visibility("default"))) int fake_nvidia_driver() {
  return 0;
}
