/* Launches. A binary of the simulator is text: the names of its kernels. What a kernel takes is the rack's to say, by
 * its name ([kernel NAME]); tasks that have no kernel's name take what their family's says, such as [kernel ffts]. */
#include "ascend_runtime.h"

#include <stdlib.h>
#include <string.h>

#define ARGUMENT_BYTES_MOST 64u

struct binary {
    struct object object;
    char *names;
};

struct function {
    struct object object;
    char name[NAME_BYTES_MOST];
};

struct arguments {
    struct object object;
    size_t used_bytes;
    char bytes[ARGUMENT_BYTES_MOST]; /* the first: no kernel of the simulator reads more */
};

static struct stub { /* what a program launches by an address of its own; under the lock, and never freed */
    const void *address;
    char name[NAME_BYTES_MOST];
    struct stub *next;
} *stubs;

static rtError_t launch(struct stream *stream, const char *name, const void *arguments)
{
    return stream_push(stream, (struct work){.kind = WORK_TASK, .task_ns = fake_hal_kernel_ns(name, arguments)});
}

static rtError_t launch_family(void *handle, const char *name)
{
    WITH_STREAM(stream, handle);
    return launch(stream, name, NULL);
}

/* T, O: a structure with arguments begins with their address. */
static const void *first_of(const void *arguments)
{
    return arguments ? *(void *const *)arguments : NULL;
}

/* Code. */

struct device_binary { /* T, O */
    uint32_t magic, version;
    const char *data;
    uint64_t size_bytes;
};

static rtError_t register_binary(const void *description, void **handle)
{
    const struct device_binary *given = description;
    LOCKED;
    NEEDS(given && given->data && handle);
    struct binary *binary = object_new(OBJECT_BINARY);
    binary->names = strndup(given->data, given->size_bytes);
    *handle = binary;
    return ACL_SUCCESS;
}

EXPORT rtError_t rtDevBinaryRegister(const void *description, void **handle)
{
    return register_binary(description, handle);
}

EXPORT rtError_t rtRegisterAllKernel(const void *description, void **handle)
{
    return register_binary(description, handle);
}

EXPORT rtError_t rtDevBinaryUnRegister(void *handle)
{
    LOCKED;
    WITH_OBJECT(binary, handle, OBJECT_BINARY);
    free(binary->names);
    object_free(binary);
    return ACL_SUCCESS;
}

EXPORT rtError_t rtFunctionRegister(void *handle, const void *address, const char *stub_name UNUSED, const char *name,
                                    uint32_t mode UNUSED)
{
    LOCKED;
    WITH_OBJECT(binary, handle, OBJECT_BINARY);
    NEEDS(address && name && strlen(name) < NAME_BYTES_MOST);
    if (!strstr(binary->names, name))
        return ACL_ERROR_RT_KERNEL_LOOKUP;
    struct stub *stub = malloc(sizeof *stub);
    *stub = (struct stub){.address = address, .next = stubs};
    strcpy(stub->name, name);
    stubs = stub;
    return ACL_SUCCESS;
}

rtError_t fake_rt_binary_function(void *handle, const char *name, void **function_handle)
{
    LOCKED;
    WITH_OBJECT(binary, handle, OBJECT_BINARY);
    NEEDS(name && function_handle && strlen(name) < NAME_BYTES_MOST);
    if (!strstr(binary->names, name))
        return ACL_ERROR_RT_KERNEL_LOOKUP;
    struct function *function = object_new(OBJECT_FUNCTION);
    strcpy(function->name, name);
    *function_handle = function;
    return ACL_SUCCESS;
}

/* By the address that a program registered. */

static rtError_t launch_stub(const void *address, const void *arguments, void *handle)
{
    WITH_STREAM(stream, handle);
    const struct stub *stub = stubs;
    while (stub && stub->address != address)
        stub = stub->next;
    return stub ? launch(stream, stub->name, arguments) : ACL_ERROR_RT_KERNEL_LOOKUP;
}

EXPORT rtError_t rtKernelLaunch(const void *stub, uint32_t blocks UNUSED, void *arguments, uint32_t bytes UNUSED,
                                void *memory UNUSED, rtStream_t stream)
{
    return launch_stub(stub, arguments, stream);
}

EXPORT rtError_t rtKernelLaunchWithFlag(const void *stub, uint32_t blocks UNUSED, void *arguments, void *memory UNUSED,
                                        rtStream_t stream, uint32_t flags UNUSED)
{
    return launch_stub(stub, first_of(arguments), stream);
}

EXPORT rtError_t rtKernelLaunchWithFlagV2(const void *stub, uint32_t blocks UNUSED, void *arguments,
                                          void *memory UNUSED, rtStream_t stream, uint32_t flags UNUSED,
                                          const void *config UNUSED)
{
    return launch_stub(stub, first_of(arguments), stream);
}

EXPORT rtError_t rtVectorCoreKernelLaunch(const void *stub, uint32_t blocks UNUSED, void *arguments,
                                          void *memory UNUSED, rtStream_t stream, uint32_t flags UNUSED,
                                          const void *config UNUSED)
{
    return launch_stub(stub, first_of(arguments), stream);
}

/* By a binary and a key of it: the first kernel of the binary. */

static rtError_t launch_binary(void *binary_handle, const void *arguments, void *handle)
{
    WITH_STREAM(stream, handle);
    WITH_OBJECT(binary, binary_handle, OBJECT_BINARY);
    char name[NAME_BYTES_MOST] = "";
    strncat(name, binary->names, strcspn(binary->names, " \n") % NAME_BYTES_MOST);
    return launch(stream, name, first_of(arguments));
}

EXPORT rtError_t rtKernelLaunchWithHandle(void *binary, uint64_t key UNUSED, uint32_t blocks UNUSED, void *arguments,
                                          void *memory UNUSED, rtStream_t stream, const void *kernel UNUSED)
{
    return launch_binary(binary, arguments, stream);
}

EXPORT rtError_t rtKernelLaunchWithHandleV2(void *binary, uint64_t key UNUSED, uint32_t blocks UNUSED, void *arguments,
                                            void *memory UNUSED, rtStream_t stream, const void *config UNUSED)
{
    return launch_binary(binary, arguments, stream);
}

EXPORT rtError_t rtVectorCoreKernelLaunchWithHandle(void *binary, uint64_t key UNUSED, uint32_t blocks UNUSED,
                                                    void *arguments, void *memory UNUSED, rtStream_t stream,
                                                    const void *config UNUSED)
{
    return launch_binary(binary, arguments, stream);
}

/* By a function's handle. */

static rtError_t launch_function(void *function_handle, const void *arguments, void *handle)
{
    WITH_STREAM(stream, handle);
    WITH_OBJECT(function, function_handle, OBJECT_FUNCTION);
    return launch(stream, function->name, arguments);
}

static rtError_t launch_with_handle(void *function, void *arguments_handle, void *stream)
{
    const struct arguments *arguments = object_find(arguments_handle, OBJECT_ARGUMENTS);
    return launch_function(function, arguments && arguments->used_bytes >= 4 ? arguments->bytes : NULL, stream);
}

EXPORT rtError_t rtLaunchKernelByFuncHandle(void *function, uint32_t blocks UNUSED, void *arguments, rtStream_t stream)
{
    return launch_with_handle(function, arguments, stream);
}

EXPORT rtError_t rtLaunchKernelByFuncHandleV2(void *function, uint32_t blocks UNUSED, void *arguments,
                                              rtStream_t stream, const void *config UNUSED)
{
    return launch_with_handle(function, arguments, stream);
}

EXPORT rtError_t rtLaunchKernelByFuncHandleV3(void *function, uint32_t blocks UNUSED, const void *arguments,
                                              rtStream_t stream, const void *config UNUSED)
{
    return launch_function(function, first_of(arguments), stream);
}

EXPORT rtError_t rtsLaunchKernelWithConfig(void *function, uint32_t blocks UNUSED, rtStream_t stream,
                                           void *config UNUSED, void *arguments, void *reserved UNUSED)
{
    return launch_with_handle(function, arguments, stream);
}

EXPORT rtError_t rtsLaunchKernelWithDevArgs(void *function, uint32_t blocks UNUSED, rtStream_t stream,
                                            void *config UNUSED, const void *arguments, uint32_t bytes,
                                            void *reserved UNUSED)
{
    return launch_function(function, bytes >= 4 ? arguments : NULL, stream);
}

EXPORT rtError_t rtsLaunchKernelWithHostArgs(void *function, uint32_t blocks UNUSED, rtStream_t stream,
                                             void *config UNUSED, void *arguments, uint32_t bytes, void *holders UNUSED,
                                             uint32_t holder_count UNUSED)
{
    return launch_function(function, bytes >= 4 ? arguments : NULL, stream);
}

EXPORT rtError_t rtsLaunchCpuKernel(void *function, uint32_t blocks UNUSED, rtStream_t stream,
                                    const void *config UNUSED, void *arguments)
{
    return launch_with_handle(function, arguments, stream);
}

rtError_t fake_rt_arguments(void **handle)
{
    LOCKED;
    NEEDS(handle);
    *handle = object_new(OBJECT_ARGUMENTS);
    return ACL_SUCCESS;
}

rtError_t fake_rt_arguments_append(void *handle, const void *bytes, size_t size)
{
    LOCKED;
    WITH_OBJECT(arguments, handle, OBJECT_ARGUMENTS);
    NEEDS(bytes);
    size_t room = ARGUMENT_BYTES_MOST - arguments->used_bytes;
    memcpy(arguments->bytes + arguments->used_bytes, bytes, size < room ? size : room);
    arguments->used_bytes += size < room ? size : room;
    return ACL_SUCCESS;
}

rtError_t fake_rt_arguments_free(void *handle)
{
    LOCKED;
    WITH_OBJECT(arguments, handle, OBJECT_ARGUMENTS);
    object_free(arguments);
    return ACL_SUCCESS;
}

/* Other families. */

EXPORT rtError_t rtKernelLaunchEx(void *arguments UNUSED, uint32_t bytes UNUSED, uint32_t flags UNUSED,
                                  rtStream_t stream)
{
    return launch_family(stream, "aicpu");
}

EXPORT rtError_t rtKernelLaunchFwk(const char *operator_name, void *arguments UNUSED, uint32_t bytes UNUSED,
                                   uint32_t flags UNUSED, rtStream_t stream)
{
    return launch_family(stream, operator_name ? operator_name : "aicpu");
}

EXPORT rtError_t rtCpuKernelLaunch(const void *library UNUSED, const void *kernel UNUSED, uint32_t blocks UNUSED,
                                   const void *arguments UNUSED, uint32_t bytes UNUSED, void *memory UNUSED,
                                   rtStream_t stream)
{
    return launch_family(stream, "aicpu");
}

EXPORT rtError_t rtCpuKernelLaunchWithFlag(const void *library UNUSED, const void *kernel UNUSED,
                                           uint32_t blocks UNUSED, const void *arguments UNUSED, void *memory UNUSED,
                                           rtStream_t stream, uint32_t flags UNUSED)
{
    return launch_family(stream, "aicpu");
}

EXPORT rtError_t rtAicpuKernelLaunch(const void *names UNUSED, uint32_t blocks UNUSED, const void *arguments UNUSED,
                                     uint32_t bytes UNUSED, void *memory UNUSED, rtStream_t stream)
{
    return launch_family(stream, "aicpu");
}

EXPORT rtError_t rtAicpuKernelLaunchWithFlag(const void *names UNUSED, uint32_t blocks UNUSED,
                                             const void *arguments UNUSED, void *memory UNUSED, rtStream_t stream,
                                             uint32_t flags UNUSED)
{
    return launch_family(stream, "aicpu");
}

EXPORT rtError_t rtAicpuKernelLaunchExWithArgs(uint32_t type UNUSED, const char *operator_name UNUSED,
                                               uint32_t blocks UNUSED, const void *arguments UNUSED,
                                               void *memory UNUSED, rtStream_t stream, uint32_t flags UNUSED)
{
    return launch_family(stream, "aicpu");
}

EXPORT rtError_t rtsLaunchRandomNumTask(const void *task UNUSED, rtStream_t stream, void *reserved UNUSED)
{
    return launch_family(stream, "random");
}

EXPORT rtError_t rtsLaunchReduceAsyncTask(const void *task UNUSED, rtStream_t stream, const void *reserved UNUSED)
{
    return launch_family(stream, "reduce");
}

EXPORT rtError_t rtsLaunchUpdateTask(rtStream_t target UNUSED, uint32_t task_id UNUSED, rtStream_t stream,
                                     void *config UNUSED)
{
    return launch_family(stream, "update");
}

EXPORT rtError_t rtFftsPlusTaskLaunch(void *task UNUSED, rtStream_t stream)
{
    return launch_family(stream, "ffts");
}

EXPORT rtError_t rtFftsPlusTaskLaunchWithFlag(void *task UNUSED, rtStream_t stream, uint32_t flag UNUSED)
{
    return launch_family(stream, "ffts");
}

EXPORT rtError_t rtFftsTaskLaunch(void *task UNUSED, rtStream_t stream)
{
    return launch_family(stream, "ffts");
}

EXPORT rtError_t rtFftsTaskLaunchWithFlag(void *task UNUSED, rtStream_t stream, uint32_t flag UNUSED)
{
    return launch_family(stream, "ffts");
}

EXPORT rtError_t rtStarsTaskLaunch(const void *entry UNUSED, uint32_t bytes UNUSED, rtStream_t stream)
{
    return launch_family(stream, "stars");
}

EXPORT rtError_t rtStarsTaskLaunchWithFlag(const void *entry UNUSED, uint32_t bytes UNUSED, rtStream_t stream,
                                           uint32_t flag UNUSED)
{
    return launch_family(stream, "stars");
}

EXPORT rtError_t rtMultipleTaskInfoLaunch(const void *task UNUSED, rtStream_t stream)
{
    return launch_family(stream, "multiple");
}

EXPORT rtError_t rtMultipleTaskInfoLaunchWithFlag(const void *task UNUSED, rtStream_t stream, uint32_t flag UNUSED)
{
    return launch_family(stream, "multiple");
}

EXPORT rtError_t rtCmoTaskLaunch(void *task UNUSED, rtStream_t stream, uint32_t flag UNUSED)
{
    return launch_family(stream, "cmo");
}

EXPORT rtError_t rtCmoAddrTaskLaunch(void *addresses UNUSED, uint64_t bytes UNUSED, uintptr_t operation UNUSED,
                                     rtStream_t stream, uint32_t flag UNUSED)
{
    return launch_family(stream, "cmo");
}

EXPORT rtError_t rtBarrierTaskLaunch(void *task UNUSED, rtStream_t stream, uint32_t flag UNUSED)
{
    return launch_family(stream, "barrier");
}
