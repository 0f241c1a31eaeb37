/* Modules and libraries: the arrays that an image declares are charged before it is loaded. What else it takes, and
 * what it does not say, is told by the driver's figure afterwards (uncounted.h).
 */
#include "blocks.h"
#include "bodies.h"
#include "charge.h"
#include "device.h"
#include "driver.h"
#include "image.h"
#include "uncounted.h"

/* Give back what is charged for a module or a library that the driver unloaded, or keep it where it did not. */
static CUresult settle_unloaded(CUresult answer, bool ours, const struct entry *entry)
{
    struct entry previous;
    if (ours && answer != CUDA_SUCCESS)
        table_put(entry, &previous);
    else if (ours) {
        give_back(entry);
        uncounted_settle(entry->device);
    }
    return answer;
}

#define UNLOAD(module)                                                                                                 \
    do {                                                                                                               \
        struct entry entry;                                                                                            \
        bool ours = table_take(HELD_MODULE, (uintptr_t)module, &entry);                                                \
        return settle_unloaded(real(module), ours, &entry);                                                            \
    } while (0)

CUresult unload_module(CUresult (*real)(CUmodule), CUmodule module)
{
    UNLOAD(module);
}

CUresult unload_library(CUresult (*real)(CUlibrary), CUlibrary library)
{
    UNLOAD(library);
}

/* Where an image goes: the current device, or the only one while there is no context yet. */
static int device_of_image(void)
{
    int device = device_current();
    return device == DEVICE_NONE ? device_only() : device;
}

/* What an image took beyond the limit goes back with it. */
#define LOAD(module, read, undo, call)                                                                                 \
    do {                                                                                                               \
        int device = device_of_image();                                                                                \
        if (!counted(device))                                                                                          \
            return call;                                                                                               \
        struct image image = read;                                                                                     \
        uint64_t bytes = blocks_for(image.globals);                                                                    \
        CUresult answer = charge(device, bytes);                                                                       \
        if (answer != CUDA_SUCCESS)                                                                                    \
            return answer;                                                                                             \
        code_loaded(image.bytes, image.calls);                                                                         \
        answer = call;                                                                                                 \
        answer = settle(answer, HELD_MODULE, answer == CUDA_SUCCESS ? (uint64_t)(uintptr_t)*module : 0, device, bytes, \
                        NULL);                                                                                         \
        if (answer != CUDA_SUCCESS || uncounted_settle(device))                                                        \
            return answer;                                                                                             \
        undo;                                                                                                          \
        return CUDA_ERROR_OUT_OF_MEMORY;                                                                               \
    } while (0)

CUresult load_module(CUresult (*real)(CUmodule *, const char *), CUmodule *module, const char *path)
{
    LOAD(module, image_of_file(path), unload_module(REAL(cuModuleUnload), *module), real(module, path));
}

CUresult load_image(CUresult (*real)(CUmodule *, const void *), CUmodule *module, const void *image_)
{
    LOAD(module, image_read(image_), unload_module(REAL(cuModuleUnload), *module), real(module, image_));
}

CUresult load_image_with(CUresult (*real)(CUmodule *, const void *, unsigned, CUjit_option *, void **),
                         CUmodule *module, const void *image_, unsigned count, CUjit_option *options, void **values)
{
    LOAD(module, image_read(image_), unload_module(REAL(cuModuleUnload), *module),
         real(module, image_, count, options, values));
}

/* A library is loaded where and when it is first used: it is charged before that. */
CUresult load_library(CUresult (*real)(CUlibrary *, const void *, CUjit_option *, void **, unsigned, CUlibraryOption *,
                                       void **, unsigned),
                      CUlibrary *library, const void *image_, CUjit_option *options, void **values, unsigned count,
                      CUlibraryOption *library_options, void **library_values, unsigned library_count)
{
    LOAD(library, image_read(image_), unload_library(REAL(cuLibraryUnload), *library),
         real(library, image_, options, values, count, library_options, library_values, library_count));
}

CUresult load_library_file(CUresult (*real)(CUlibrary *, const char *, CUjit_option *, void **, unsigned,
                                            CUlibraryOption *, void **, unsigned),
                           CUlibrary *library, const char *path, CUjit_option *options, void **values, unsigned count,
                           CUlibraryOption *library_options, void **library_values, unsigned library_count)
{
    LOAD(library, image_of_file(path), unload_library(REAL(cuLibraryUnload), *library),
         real(library, path, options, values, count, library_options, library_values, library_count));
}

/* Of what is used of a library now, the driver's figure tells. */
#define USE(call)                                                                                                      \
    do {                                                                                                               \
        CUresult answer = call;                                                                                        \
        return answer != CUDA_SUCCESS || uncounted_look(device_current()) ? answer : CUDA_ERROR_OUT_OF_MEMORY;         \
    } while (0)

CUresult module_of_library(CUresult (*real)(CUmodule *, CUlibrary), CUmodule *module, CUlibrary library)
{
    USE(real(module, library));
}

CUresult global_of_library(CUresult (*real)(CUdeviceptr *, size_t *, CUlibrary, const char *), CUdeviceptr *pointer,
                           size_t *bytes, CUlibrary library, const char *name)
{
    USE(real(pointer, bytes, library, name));
}

CUresult function_of_kernel(CUresult (*real)(CUfunction *, CUkernel), CUfunction *function, CUkernel kernel)
{
    USE(real(function, kernel));
}

CUresult load_function(CUresult (*real)(CUfunction), CUfunction function)
{
    USE(real(function));
}
