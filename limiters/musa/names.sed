# What MUSA calls the things that CUDA has: its limiter is made of the CUDA limiter's bodies under these names.
s/\bcu\([A-Z]\)/mu\1/g
s/libcuda\.so\.1/libmusa.so.1/g
s/CUDA_VISIBLE_DEVICES/MUSA_VISIBLE_DEVICES/g
s|\.\./cuda/|../musa/|g
s|\.\./nvml/shim\.h|mtml.h|
s/\bnvml_/mtml_/g
