/* The functions of modules and libraries: which kernel of the rack a name stands for. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

static const struct nvidia_kernel unknown_kernel = {"", 2000, 0};

static struct function *find(struct module *module, const char *name, bool of_library)
{
    struct function *function = NULL;
    while ((function = object_next(function, OBJECT_FUNCTION)))
        if (function->module == module && function->is_library_kernel == of_library && !strcmp(function->name, name))
            return function;
    function = object_new(OBJECT_FUNCTION);
    function->module = module;
    function->name = strdup(name);
    function->is_library_kernel = of_library;
    function->kernel = &unknown_kernel;
    function->calls_malloc = image_mallocs(module, name);
    function->thread_local_bytes = image_local(module, name);
    function->parameter_bytes = image_parameters(module, name);
    for (unsigned i = 0; i < driver.rack->kernel_count; i++)
        if (!strcmp(driver.rack->kernels[i].name, name))
            function->kernel = &driver.rack->kernels[i];
    return function;
}

static CUresult get(const void *handle, const char *name, bool of_library, struct function **function)
{
    LOCKED;
    struct module *module = object_find(handle, OBJECT_MODULE);
    if (!module)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!name || !*name || !function)
        return CUDA_ERROR_INVALID_VALUE;
    if (!image_declares(module, name))
        return CUDA_ERROR_NOT_FOUND;
    *function = find(module, name, of_library);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleGetFunction(CUfunction *function, CUmodule handle, const char *name)
{
    return get(handle, name, false, (struct function **)function);
}

EXPORT CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary handle, const char *name)
{
    return get(handle, name, true, (struct function **)kernel);
}

/* Addresses of functions for other kernels: none is simulated. */
EXPORT CUresult cuLibraryGetUnifiedFunction(void **function, CUlibrary handle, const char *name)
{
    LOCKED;
    NEEDS(function);
    if (!object_find(handle, OBJECT_MODULE))
        return CUDA_ERROR_INVALID_HANDLE;
    return name ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuLibraryGetKernelCount(unsigned *count, CUlibrary handle)
{
    LOCKED;
    NEEDS(count);
    const struct module *module = object_find(handle, OBJECT_MODULE);
    if (!module)
        return CUDA_ERROR_INVALID_HANDLE;
    *count = 0;
    for (const char *cursor = module->ptx; cursor && (cursor = strstr(cursor, ".entry")); cursor++)
        ++*count;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuKernelGetFunction(CUfunction *function, CUkernel handle)
{
    LOCKED;
    WITH_CONTEXT(context);
    struct function *kernel = object_find(handle, OBJECT_FUNCTION);
    if (!kernel)
        return CUDA_ERROR_INVALID_HANDLE;
    CHECK(module_enter(kernel->module, context, NULL));
    *function = (CUfunction)find(kernel->module, kernel->name, false);
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
    const struct function *function = object_find(handle, OBJECT_FUNCTION);
    if (!function)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!value || (unsigned)attribute >= CU_FUNC_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024
             : attribute == CU_FUNC_ATTRIBUTE_NUM_REGS            ? 32
             : attribute == CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES    ? (int)function->thread_local_bytes
                                                                  : 0;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel handle, CUdevice device)
{
    (void)device;
    return cuFuncGetAttribute(value, attribute, (CUfunction)handle);
}

EXPORT CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value)
{
    LOCKED;
    (void)value;
    if (!object_find(handle, OBJECT_FUNCTION))
        return CUDA_ERROR_INVALID_HANDLE;
    return (unsigned)attribute < CU_FUNC_ATTRIBUTE_MAX ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* A launch as work of a stream. Its duration is the kernel's base time, and a time for each unit of its first
 * parameter. dimensions: grid, block, bytes of shared memory. */
CUresult launch_work(struct work *work, CUfunction handle, const unsigned dimensions[7], void **params, void **extra)
{
    struct function *function = object_find(handle, OBJECT_FUNCTION);
    if (!function)
        return CUDA_ERROR_INVALID_HANDLE;
    for (unsigned i = 0; i < 6; i++)
        if (!dimensions[i])
            return CUDA_ERROR_INVALID_VALUE;
    if ((uint64_t)dimensions[3] * dimensions[4] * dimensions[5] > 1024)
        return CUDA_ERROR_INVALID_VALUE;
    *work = (struct work){
        .type = CU_GRAPH_NODE_TYPE_KERNEL,
        .duration_ns = function->kernel->base_ns,
        .kernel = {.func = handle,
                   .gridDimX = dimensions[0],
                   .gridDimY = dimensions[1],
                   .gridDimZ = dimensions[2],
                   .blockDimX = dimensions[3],
                   .blockDimY = dimensions[4],
                   .blockDimZ = dimensions[5],
                   .sharedMemBytes = dimensions[6]},
    };
    const void *first_argument = params ? params[0] : NULL;
    for (; !first_argument && extra && *extra != CU_LAUNCH_PARAM_END; extra += 2)
        if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
            first_argument = extra[1];
    if (function->kernel->ns_per_arg0) {
        uint32_t argument;
        if (!first_argument)
            return CUDA_ERROR_INVALID_VALUE;
        memcpy(&argument, first_argument, sizeof argument);
        work->duration_ns += function->kernel->ns_per_arg0 * argument;
    }
    return CUDA_SUCCESS;
}

/* All parameters in one buffer. */
static CUresult parameter(const void *handle, size_t index, size_t *offset, size_t *size)
{
    LOCKED;
    const struct function *function = object_find(handle, OBJECT_FUNCTION);
    if (!function)
        return CUDA_ERROR_INVALID_HANDLE;
    if (index > 0 || !function->parameter_bytes)
        return CUDA_ERROR_INVALID_VALUE;
    *offset = 0;
    *size = function->parameter_bytes;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *size)
{
    return parameter(function, index, offset, size);
}

EXPORT CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *size)
{
    return parameter(kernel, index, offset, size);
}

CUresult kernel_ready(CUfunction handle, struct context *context)
{
    struct function *function = object_find(handle, OBJECT_FUNCTION);
    if (!function)
        return CUDA_ERROR_INVALID_HANDLE;
    CHECK(module_enter(function->module, context, NULL));
    CHECK(limits_need_local(context, function->thread_local_bytes));
    return function->calls_malloc ? limits_need_heap(context) : CUDA_SUCCESS;
}

static CUresult launch(CUstream handle, CUfunction function, const unsigned dims[7], void **params, void **extra)
{
    LOCKED;
    struct work work;
    struct stream *stream = stream_find(handle);
    if (!stream)
        return current_context() ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_CONTEXT;
    CHECK(launch_work(&work, function, dims, params, extra));
    CHECK(kernel_ready(function, stream->context));
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
        const CUDA_LAUNCH_PARAMS *launch_params = &launches[i];
        CHECK(launch(launch_params->hStream, launch_params->function,
                     (unsigned[]){launch_params->gridDimX, launch_params->gridDimY, launch_params->gridDimZ,
                                  launch_params->blockDimX, launch_params->blockDimY, launch_params->blockDimZ,
                                  launch_params->sharedMemBytes},
                     launch_params->kernelParams, NULL));
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
