/* Modules, libraries and the functions in them: which kernel of the rack a name stands for. */
#include "driver.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct nvidia_kernel unknown_kernel = {"", 2000, 0};

/* PTX is text; anything else must look like what nvcc or nvrtc make: an ELF cubin or a fat binary. */
static CUresult load(const void *image, struct module **loaded)
{
    LOCKED;
    if (!image || !loaded)
        return CUDA_ERROR_INVALID_VALUE;
    uint32_t magic;
    memcpy(&magic, image, sizeof magic);
    bool binary = magic == 0x464c457fu || magic == 0xba55ed50u || magic == 0x466243b1u;
    if (!binary && !strstr(image, ".version"))
        return CUDA_ERROR_INVALID_IMAGE;
    struct module *module = object_new(OBJECT_MODULE);
    module->ptx = binary ? NULL : strdup(image);
    *loaded = module;
    return CUDA_SUCCESS;
}

static CUresult load_in_context(const void *image, CUmodule *handle)
{
    struct module *module;
    if (!driver.rack)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!current_context())
        return CUDA_ERROR_INVALID_CONTEXT;
    CHECK(load(image, handle ? &module : NULL));
    *handle = (CUmodule)module;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleLoadData(CUmodule *handle, const void *image)
{
    return load_in_context(image, handle);
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule *handle, const void *image, unsigned count, CUjit_option *options,
                                   void **values)
{
    (void)count, (void)options, (void)values;
    return load_in_context(image, handle);
}

EXPORT CUresult cuModuleLoadFatBinary(CUmodule *handle, const void *image)
{
    return load_in_context(image, handle);
}

EXPORT CUresult cuModuleLoad(CUmodule *handle, const char *path)
{
    FILE *file = path ? fopen(path, "re") : NULL;
    if (!file)
        return path ? CUDA_ERROR_FILE_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
    char *text = calloc(1, 1 << 20); /* the head of a binary is enough, and PTX this long is not written by hand */
    size_t size = fread(text, 1, (1 << 20) - 1, file);
    fclose(file);
    CUresult result = size ? load_in_context(text, handle) : CUDA_ERROR_INVALID_IMAGE;
    free(text);
    return result;
}

static CUresult unload(const void *handle)
{
    LOCKED;
    struct module *module = object_find(handle, OBJECT_MODULE);
    if (!module)
        return CUDA_ERROR_INVALID_HANDLE;
    for (struct function *it = NULL; (it = object_next(it, OBJECT_FUNCTION));)
        if (it->module == module) {
            free(it->name);
            object_free(it);
        }
    free(module->ptx);
    object_free(module);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleUnload(CUmodule handle)
{
    return unload(handle);
}
EXPORT CUresult cuLibraryUnload(CUlibrary handle)
{
    return unload(handle);
}

static bool declares(const char *ptx, const char *name)
{
    size_t length = strlen(name);
    for (const char *at = ptx; (at = strstr(at, ".entry"));) {
        at += strlen(".entry");
        at += strspn(at, " \t\r\n");
        if (!strncmp(at, name, length) && !isalnum((unsigned char)at[length]) && !strchr("_$", at[length]))
            return true;
    }
    return false;
}

static CUresult get(const void *handle, const char *name, struct function **found)
{
    LOCKED;
    struct module *module = object_find(handle, OBJECT_MODULE);
    if (!module)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!name || !*name || !found)
        return CUDA_ERROR_INVALID_VALUE;
    if (module->ptx && !declares(module->ptx, name))
        return CUDA_ERROR_NOT_FOUND;
    struct function *function = NULL;
    while ((function = object_next(function, OBJECT_FUNCTION)))
        if (function->module == module && !strcmp(function->name, name))
            break;
    if (!function) {
        function = object_new(OBJECT_FUNCTION);
        function->module = module;
        function->name = strdup(name);
        function->kernel = &unknown_kernel;
        for (unsigned i = 0; i < driver.rack->kernel_count; i++)
            if (!strcmp(driver.rack->kernels[i].name, name))
                function->kernel = &driver.rack->kernels[i];
    }
    *found = function;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule handle, const char *name)
{
    return get(handle, name, (struct function **)function);
}

EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr *pointer, size_t *size, CUmodule handle, const char *name)
{
    LOCKED;
    (void)pointer, (void)size;
    if (!name)
        return CUDA_ERROR_INVALID_VALUE;
    return object_find(handle, OBJECT_MODULE) ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_HANDLE;
}

EXPORT CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
    LOCKED;
    if (!mode)
        return CUDA_ERROR_INVALID_VALUE;
    *mode = CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLibraryLoadData(CUlibrary *handle, const void *image, CUjit_option *jit, void **jit_values,
                                  unsigned jit_count, CUlibraryOption *options, void **values, unsigned count)
{
    (void)jit, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    return load(image, (struct module **)handle);
}

EXPORT CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary handle, const char *name)
{
    return get(handle, name, (struct function **)kernel);
}

EXPORT CUresult cuLibraryGetModule(CUmodule *module, CUlibrary handle)
{
    LOCKED;
    if (!object_find(handle, OBJECT_MODULE))
        return CUDA_ERROR_INVALID_HANDLE;
    *module = (CUmodule)handle;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuKernelGetFunction(CUfunction *function, CUkernel handle)
{
    LOCKED;
    if (!object_find(handle, OBJECT_FUNCTION))
        return CUDA_ERROR_INVALID_HANDLE;
    *function = (CUfunction)handle;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuKernelGetLibrary(CUlibrary *library, CUkernel handle)
{
    LOCKED;
    struct function *function = object_find(handle, OBJECT_FUNCTION);
    if (!function)
        return CUDA_ERROR_INVALID_HANDLE;
    *library = (CUlibrary)function->module;
    return CUDA_SUCCESS;
}

static CUresult name_of(const char **name, const void *handle)
{
    LOCKED;
    struct function *function = object_find(handle, OBJECT_FUNCTION);
    if (!function)
        return CUDA_ERROR_INVALID_HANDLE;
    *name = function->name;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetName(const char **name, CUfunction handle)
{
    return name_of(name, handle);
}
EXPORT CUresult cuKernelGetName(const char **name, CUkernel handle)
{
    return name_of(name, handle);
}

EXPORT CUresult cuFuncGetModule(CUmodule *module, CUfunction handle)
{
    return cuKernelGetLibrary((CUlibrary *)module, (CUkernel)handle);
}

EXPORT CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction handle)
{
    LOCKED;
    if (!object_find(handle, OBJECT_FUNCTION))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!value || (unsigned)attribute >= CU_FUNC_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024
             : attribute == CU_FUNC_ATTRIBUTE_NUM_REGS            ? 32
                                                                  : 0;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value)
{
    LOCKED;
    (void)value;
    if (!object_find(handle, OBJECT_FUNCTION))
        return CUDA_ERROR_INVALID_HANDLE;
    return (unsigned)attribute < CU_FUNC_ATTRIBUTE_MAX ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* What a launch is as a piece of work: how long it takes is its kernel's time, and so much more for each of what its
 * first parameter counts. dims: grid, block, shared memory. */
CUresult launch_work(struct work *work, CUfunction handle, const unsigned dims[7], void **params, void **extra)
{
    struct function *function = object_find(handle, OBJECT_FUNCTION);
    if (!function)
        return CUDA_ERROR_INVALID_HANDLE;
    for (unsigned i = 0; i < 6; i++)
        if (!dims[i])
            return CUDA_ERROR_INVALID_VALUE;
    if ((uint64_t)dims[3] * dims[4] * dims[5] > 1024)
        return CUDA_ERROR_INVALID_VALUE;
    *work = (struct work){
        .type = CU_GRAPH_NODE_TYPE_KERNEL,
        .ns = function->kernel->time,
        .kernel = {.func = handle,
                   .gridDimX = dims[0],
                   .gridDimY = dims[1],
                   .gridDimZ = dims[2],
                   .blockDimX = dims[3],
                   .blockDimY = dims[4],
                   .blockDimZ = dims[5],
                   .sharedMemBytes = dims[6]},
    };
    const void *first = params ? params[0] : NULL;
    for (; !first && extra && *extra != CU_LAUNCH_PARAM_END; extra += 2)
        if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
            first = extra[1];
    if (function->kernel->per_arg0) {
        uint32_t argument;
        if (!first)
            return CUDA_ERROR_INVALID_VALUE;
        memcpy(&argument, first, sizeof argument);
        work->ns += function->kernel->per_arg0 * argument;
    }
    return CUDA_SUCCESS;
}

static CUresult launch(CUstream handle, CUfunction function, const unsigned dims[7], void **params, void **extra)
{
    LOCKED;
    struct work work;
    struct stream *stream = stream_find(handle);
    if (!stream)
        return current_context() ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_CONTEXT;
    CHECK(launch_work(&work, function, dims, params, extra));
    return enqueue(stream, &work);
}

EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                               unsigned bz, unsigned shared, CUstream stream, void **params, void **extra)
{
    return launch(stream, function, (unsigned[]){gx, gy, gz, bx, by, bz, shared}, params, extra);
}

EXPORT CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                          unsigned by, unsigned bz, unsigned shared, CUstream stream, void **params)
{
    return launch(stream, function, (unsigned[]){gx, gy, gz, bx, by, bz, shared}, params, NULL);
}

EXPORT CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launches, unsigned count, unsigned flags)
{
    if (!launches || !count || flags > 3)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        const CUDA_LAUNCH_PARAMS *each = &launches[i];
        CHECK(launch(each->hStream, each->function,
                     (unsigned[]){each->gridDimX, each->gridDimY, each->gridDimZ, each->blockDimX, each->blockDimY,
                                  each->blockDimZ, each->sharedMemBytes},
                     each->kernelParams, NULL));
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params, void **extra)
{
    if (!config)
        return CUDA_ERROR_INVALID_VALUE;
    return launch(config->hStream, function,
                  (unsigned[]){config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
                               config->blockDimY, config->blockDimZ, config->sharedMemBytes},
                  params, extra);
}
