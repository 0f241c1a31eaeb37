/* Charges the code that is part of a program (hipcc's fat binaries). HIP's runtime has the HSA runtime load it within
 * the first call that needs it. So it is charged here, from before the load until its executable is destroyed.
 *
 * HIP's runtime holds locks meanwhile. So none of its functions may be called, and no memory is reclaimed.
 */
#include "bodies.h"
#include "driver.h"

#include "../shared/blocks.h"
#include "../shared/charge.h"
#include "../shared/image.h"
#include "../shared/module.h"

#include "../core/fault.h"
#include "../core/tenant.h"

#include <stdatomic.h>
#include <stdbool.h>

#define PAGE UINT64_C(4096)

int device_of_agent(hsa_agent_t agent)
{
    char name[32] = "";
    typeof(&hsa_agent_get_info) get_info = REAL(hsa_agent_get_info);
    if (tenancy() != TENANCY_HELD || get_info == NULL ||
        get_info(agent, HSA_AMD_AGENT_INFO_UUID, name) != HSA_STATUS_SUCCESS)
        return DEVICE_FOREIGN;
    return tenant_device_named(name);
}

hsa_status_t read_memory(typeof(&hsa_code_object_reader_create_from_memory) real, const void *image, size_t image_bytes,
                         hsa_code_object_reader_t *reader)
{
    hsa_status_t answer = real(image, image_bytes, reader);
    if (answer == HSA_STATUS_SUCCESS)
        keep_entry(&(struct entry){.kind = HELD_READER,
                                   .key = reader->handle,
                                   .device = DEVICE_NONE,
                                   .bytes = image_of_code(image, image_bytes).global_bytes});
    return answer;
}

hsa_status_t destroy_reader(typeof(&hsa_code_object_reader_destroy) real, hsa_code_object_reader_t reader)
{
    struct entry entry;
    table_take(HELD_READER, reader.handle, &entry);
    return real(reader);
}

/* Whether a small image fits into the block that the runtime has for its own kernels, where it takes nothing. */
static bool is_in_first_block(int device, uint64_t bytes)
{
    static _Atomic uint64_t filled_bytes[HETERO_MAX_DEVICES];
    bool has_room = atomic_fetch_add(&filled_bytes[device], bytes) + bytes <= BLOCK_BYTES;
    if (!has_room)
        atomic_fetch_sub(&filled_bytes[device], bytes);
    return has_room;
}

/* The bytes that an image takes beyond those that are charged for the call that loads it. */
static uint64_t chargeable_image_bytes(uint64_t image_bytes, int device)
{
    uint64_t block_bytes = block_bytes_of(image_bytes);
    if (block_bytes > 0)
        return block_bytes - FAULT_VALUE(module_charged_twice, covered_by_load(block_bytes), 0);
    if (device < 0 || is_in_first_block(device, image_bytes))
        return 0;
    return FAULT_VALUE(small_images_uncharged, (image_bytes + PAGE - 1) / PAGE * PAGE, 0);
}

/* The key of an executable on a device, whose images there are one entry. */
static uint64_t key_of(hsa_executable_t executable, int device)
{
    return executable.handle ^ (uint64_t)(device + 1) << 56;
}

static void keep_loaded(hsa_executable_t executable, int device, uint64_t bytes)
{
    struct entry entry;
    uint64_t key = key_of(executable, device);
    if (bytes > 0 && !table_add(HELD_LOADED, key, (int64_t)bytes, &entry))
        keep_entry(&(struct entry){.kind = HELD_LOADED, .key = key, .device = device, .bytes = bytes});
}

/* HIP's runtime loads all images by this call. A program that calls HSA directly is not limited (docs/hip.md). */
hsa_status_t load_code(typeof(&hsa_executable_load_agent_code_object) real, hsa_executable_t executable,
                       hsa_agent_t agent, hsa_code_object_reader_t reader, const char *options,
                       hsa_loaded_code_object_t *loaded)
{
    struct entry image_entry;
    int device = device_of_agent(agent);
    if (!table_get(HELD_READER, reader.handle, &image_entry) || (device >= 0 && !counted(device)))
        return real(executable, agent, reader, options, loaded);
    uint64_t bytes = chargeable_image_bytes(image_entry.bytes, device);
    if (bytes > 0 && !FAULT(loaded_arrays_uncharged) && charge_without_reclaim(device, bytes) != RESULT_OK)
        return HSA_STATUS_ERROR_OUT_OF_RESOURCES;
    hsa_status_t answer = real(executable, agent, reader, options, loaded);
    if (answer == HSA_STATUS_SUCCESS)
        keep_loaded(executable, device, bytes);
    else
        refund(device, bytes);
    return answer;
}

/* The entries are taken out before the runtime is called, because it may reuse the name at once. */
hsa_status_t destroy_executable(typeof(&hsa_executable_destroy) real, hsa_executable_t executable)
{
    struct entry entries[HETERO_MAX_DEVICES], previous;
    for (int device = 0; device < (int)HETERO_MAX_DEVICES; device++)
        if (!table_take(HELD_LOADED, key_of(executable, device), &entries[device]))
            entries[device].bytes = 0;
    hsa_status_t answer = real(executable);
    for (int device = 0; device < (int)HETERO_MAX_DEVICES; device++)
        if (answer == HSA_STATUS_SUCCESS)
            refund(device, FAULT_VALUE(unloaded_program_charged, entries[device].bytes, 0));
        else if (entries[device].bytes > 0)
            table_put(&entries[device], &previous);
    return answer;
}
