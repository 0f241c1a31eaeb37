# What MUSA calls the things that CUDA has: its fake driver and job are the CUDA ones under these names.
s/\bcu\([A-Z]\)/mu\1/g
s/libcuda\.so\.1/libmusa.so.1/g
s/CUDA_VISIBLE_DEVICES/MUSA_VISIBLE_DEVICES/g
s|"cuda/abi|"musa/abi|
s/\bCUDA_ERROR_/MUSA_ERROR_/g
