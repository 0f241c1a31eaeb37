/* What the simulated libascendcl has besides the runtime's functions: tensors' descriptions, operators' attributes,
 * data sets, and models that were compiled before (P). A model of the simulator is text: the names of its kernels. Its
 * size is its weights', which are loaded onto the card. An operator takes the time of the kernel of its name. */
#include "ascend_acl.h"

#include <stdlib.h>
#include <string.h>

#define DIMENSIONS_MOST 16
#define MODELS_MOST     64u
#define PARTS_MOST      64u

typedef struct aclTensorDesc {
    int type, dimension_count;
    int64_t dimensions[DIMENSIONS_MOST];
} aclTensorDesc;

typedef struct aclDataBuffer {
    void *address;
    size_t bytes;
} aclDataBuffer;

typedef struct aclmdlDataset {
    size_t count;
    aclDataBuffer *buffers[PARTS_MOST];
} aclmdlDataset;

/* Tensors. */

EXPORT size_t aclDataTypeSize(int type)
{
    static const size_t sizes[] = {4, 2, 1, 4, 1, 0, 2, 2, 4, 8, 8, 8, 1, 0, 0, 0, 8, 16, [27] = 2};
    return type >= 0 && (size_t)type < sizeof sizes / sizeof *sizes ? sizes[type] : 0;
}

EXPORT aclTensorDesc *aclCreateTensorDesc(int type, int count, const int64_t *dimensions, int format UNUSED)
{
    if (count < 0 || count > DIMENSIONS_MOST || (count && !dimensions))
        return NULL;
    aclTensorDesc *description = calloc(1, sizeof *description);
    description->type = type;
    description->dimension_count = count;
    memcpy(description->dimensions, dimensions, (size_t)count * sizeof *dimensions);
    return description;
}

EXPORT void aclDestroyTensorDesc(const aclTensorDesc *description)
{
    free((void *)(uintptr_t)description);
}

EXPORT size_t aclGetTensorDescNumDims(const aclTensorDesc *description)
{
    return description ? (size_t)description->dimension_count : 0;
}

EXPORT aclError aclGetTensorDescDimV2(const aclTensorDesc *description, size_t index, int64_t *size)
{
    if (!description || !size || index >= (size_t)description->dimension_count)
        return ACL_ERROR_INVALID_PARAM;
    *size = description->dimensions[index];
    return ACL_SUCCESS;
}

EXPORT size_t aclGetTensorDescSize(const aclTensorDesc *description)
{
    size_t bytes = description ? aclDataTypeSize(description->type) : 0;
    for (int i = 0; description && i < description->dimension_count; i++)
        bytes *= (size_t)description->dimensions[i];
    return bytes;
}

EXPORT aclError aclSetTensorConst(aclTensorDesc *description, void *data, size_t bytes UNUSED)
{
    return description && data ? ACL_SUCCESS : ACL_ERROR_INVALID_PARAM;
}

EXPORT aclDataBuffer *aclCreateDataBuffer(void *address, size_t bytes)
{
    aclDataBuffer *buffer = malloc(sizeof *buffer);
    *buffer = (aclDataBuffer){address, bytes};
    return buffer;
}

EXPORT aclError aclDestroyDataBuffer(const aclDataBuffer *buffer)
{
    free((void *)(uintptr_t)buffer);
    return buffer ? ACL_SUCCESS : ACL_ERROR_INVALID_PARAM;
}

EXPORT void *aclGetDataBufferAddr(const aclDataBuffer *buffer)
{
    return buffer ? buffer->address : NULL;
}

EXPORT size_t aclGetDataBufferSizeV2(const aclDataBuffer *buffer)
{
    return buffer ? buffer->bytes : 0;
}

/* Attributes of operators change nothing here. */

EXPORT void *aclopCreateAttr(void)
{
    return malloc(1);
}

EXPORT void aclopDestroyAttr(const void *attributes)
{
    free((void *)(uintptr_t)attributes);
}

#define ATTRIBUTE(name, ...)                                                                                           \
    EXPORT aclError name(void *attributes, const char *attribute, __VA_ARGS__)                                         \
    {                                                                                                                  \
        return attributes && attribute ? ACL_SUCCESS : ACL_ERROR_INVALID_PARAM;                                        \
    }
ATTRIBUTE(aclopSetAttrBool, uint8_t value UNUSED)
ATTRIBUTE(aclopSetAttrInt, int64_t value UNUSED)
ATTRIBUTE(aclopSetAttrFloat, float value UNUSED)
ATTRIBUTE(aclopSetAttrString, const char *value UNUSED)
ATTRIBUTE(aclopSetAttrListInt, int count UNUSED, const int64_t *values UNUSED)

/* Data sets. */

EXPORT aclmdlDataset *aclmdlCreateDataset(void)
{
    return calloc(1, sizeof(aclmdlDataset));
}

EXPORT aclError aclmdlDestroyDataset(const aclmdlDataset *set)
{
    free((void *)(uintptr_t)set);
    return set ? ACL_SUCCESS : ACL_ERROR_INVALID_PARAM;
}

EXPORT aclError aclmdlAddDatasetBuffer(aclmdlDataset *set, aclDataBuffer *buffer)
{
    if (!set || !buffer || set->count == PARTS_MOST)
        return ACL_ERROR_INVALID_PARAM;
    set->buffers[set->count++] = buffer;
    return ACL_SUCCESS;
}

EXPORT aclDataBuffer *aclmdlGetDatasetBuffer(const aclmdlDataset *set, size_t index)
{
    return set && index < set->count ? set->buffers[index] : NULL;
}

EXPORT aclTensorDesc *aclmdlGetDatasetTensorDesc(const aclmdlDataset *set UNUSED, size_t index UNUSED)
{
    return NULL;
}

/* Models: recorded once as the runtime's, and executed as such. Their inputs and outputs are not described. */

static struct model_slot {
    void *recorded, *weights;
} models[MODELS_MOST]; /* by id */
static pthread_mutex_t models_lock = PTHREAD_MUTEX_INITIALIZER;

static aclError launch_all(const char *text, size_t bytes, rtStream_t stream)
{
    void *binary, *function;
    struct {
        uint32_t magic, version;
        const void *data;
        uint64_t size_bytes;
    } description = {.data = text, .size_bytes = bytes};
    aclError error = rtRegisterAllKernel(&description, &binary);
    char *names = strndup(text, bytes), *rest = names;
    for (char *name; !error && (name = strtok_r(rest, " \n", &rest));)
        if (!(error = fake_rt_binary_function(binary, name, &function)))
            error = rtsLaunchKernelWithDevArgs(function, 1, stream, NULL, NULL, 0, NULL);
    free(names);
    return error;
}

static aclError record(const char *text, size_t bytes, void **recorded)
{
    rtStream_t stream;
    aclError error = rtStreamCreate(&stream, 0);
    if (error)
        return error;
    error = rtStreamBeginCapture(stream, ACL_MODEL_RI_CAPTURE_MODE_RELAXED);
    if (!error)
        error = launch_all(text, bytes, stream);
    aclError end_error = rtStreamEndCapture(stream, recorded);
    rtStreamDestroy(stream);
    return error ? error : end_error;
}

EXPORT aclError aclmdlLoadFromMem(const void *model, size_t bytes, uint32_t *id)
{
    struct model_slot loaded;
    if (!model || !bytes || !id)
        return ACL_ERROR_INVALID_PARAM;
    aclError error = rtMalloc(&loaded.weights, bytes, 0, 0);
    if (error)
        return error;
    error = record(model, strnlen(model, bytes), &loaded.recorded);
    pthread_mutex_lock(&models_lock);
    uint32_t slot = 1;
    while (slot < MODELS_MOST && models[slot].recorded)
        slot++;
    if (!error && slot == MODELS_MOST)
        error = ACL_ERROR_INVALID_MODEL_ID;
    if (!error)
        models[ *id = slot] = loaded;
    pthread_mutex_unlock(&models_lock);
    if (error)
        rtFree(loaded.weights);
    return error;
}

EXPORT aclError aclmdlQuerySizeFromMem(const void *model, size_t bytes, size_t *work_bytes, size_t *weight_bytes)
{
    if (!model || !work_bytes || !weight_bytes)
        return ACL_ERROR_INVALID_PARAM;
    *work_bytes = 0;
    *weight_bytes = bytes;
    return ACL_SUCCESS;
}

static void *recorded_of(uint32_t id)
{
    pthread_mutex_lock(&models_lock);
    void *recorded = id < MODELS_MOST ? models[id].recorded : NULL;
    pthread_mutex_unlock(&models_lock);
    return recorded;
}

EXPORT aclError aclmdlUnload(uint32_t id)
{
    if (!recorded_of(id))
        return ACL_ERROR_INVALID_MODEL_ID;
    fake_rt_model_destroy(models[id].recorded);
    aclError error = rtFree(models[id].weights);
    models[id] = (struct model_slot){NULL, NULL};
    return error;
}

EXPORT aclError aclmdlExecute(uint32_t id, const void *input UNUSED, void *output UNUSED)
{
    void *recorded = recorded_of(id);
    return recorded ? rtModelExecuteSync(recorded, NULL, 0, FOREVER) : ACL_ERROR_INVALID_MODEL_ID;
}

EXPORT aclError aclmdlExecuteAsync(uint32_t id, const void *input UNUSED, void *output UNUSED, aclrtStream stream)
{
    void *recorded = recorded_of(id);
    return recorded ? rtModelExecute(recorded, stream, 0) : ACL_ERROR_INVALID_MODEL_ID;
}

EXPORT aclError aclmdlExecuteV2(uint32_t id, const void *input UNUSED, void *output UNUSED, aclrtStream stream,
                                const void *config UNUSED)
{
    void *recorded = recorded_of(id);
    return recorded ? rtModelExecuteSync(recorded, stream, 0, FOREVER) : ACL_ERROR_INVALID_MODEL_ID;
}

EXPORT aclError aclmdlExecuteAsyncV2(uint32_t id, const void *input, void *output, aclrtStream stream,
                                     const void *config UNUSED)
{
    return aclmdlExecuteAsync(id, input, output, stream);
}

/* Not simulated: what is asked of a model's description, and models in files. */

#define NOT_SIMULATED(name)                                                                                            \
    EXPORT aclError name(void)                                                                                         \
    {                                                                                                                  \
        return ACL_ERROR_RT_FEATURE_NOT_SUPPORT;                                                                       \
    }
NOT_SIMULATED(aclmdlLoadFromFile)
NOT_SIMULATED(aclmdlGetDesc)
NOT_SIMULATED(aclmdlGetOutputDims)

#define NOTHING(type, name)                                                                                            \
    EXPORT type name(void)                                                                                             \
    {                                                                                                                  \
        return 0;                                                                                                      \
    }
NOTHING(void *, aclmdlCreateDesc)
NOTHING(aclError, aclmdlDestroyDesc)
NOTHING(size_t, aclmdlGetNumInputs)
NOTHING(size_t, aclmdlGetNumOutputs)
NOTHING(size_t, aclmdlGetInputSizeByIndex)
NOTHING(size_t, aclmdlGetOutputSizeByIndex)
