/* Page tables: 4 KiB of the card for each 512 MiB of addresses with blocks mapped by hand in them, and for each 2 MiB
 * with registered memory of the host. The driver counts them for no process (an NVIDIA H100, driver 580.159.04,
 * 2026-11-27: one block mapped at 30,000 addresses took 116 MiB in two seconds). They are charged in blocks, of which
 * the first is part of the context, and stay charged, though the driver gives them back with what was mapped.
 */
#include "../shared/blocks.h"
#include "../shared/bodies.h"
#include "../shared/charge.h"
#include "../shared/device.h"
#include "../shared/driver.h"
#include "../shared/uncounted.h"
#include "../shared/virtual.h"

#define TABLES_OF_A_BLOCK 512
#define ADDRESSES         (UINT64_C(1) << 47) /* the host's, from which the driver takes the device's */

#define MOST_LOOKED_AT (UINT64_C(1) << 20)

/* What a table is of, by how many addresses it reaches, as a power of two. */
enum reach { OF_HOST = 21, OF_BLOCKS = 29 };

static uint64_t key_of(int device, enum reach reach, uint64_t stretch)
{
    return stretch << 8 | (uint64_t)(reach == OF_HOST) << 7 | (unsigned)device;
}

static uint64_t charged_for(uint64_t tables)
{
    return tables <= TABLES_OF_A_BLOCK ? 0 : blocks_for((tables - TABLES_OF_A_BLOCK) * (BLOCK / TABLES_OF_A_BLOCK));
}

/* The tables that a range needs and that are not known yet; `enter`: they are from then on. Of 2 TiB of the host and
 * more all are taken to be new. */
static uint64_t unknown_tables(int device, enum reach reach, uint64_t start, uint64_t bytes, bool enter)
{
    struct entry entry = {.kind = HELD_TABLE, .device = device}, found;
    uint64_t count = 0;
    if (bytes >> reach > MOST_LOOKED_AT)
        return bytes >> reach;
    for (uint64_t at = start >> reach; at <= (start + bytes - 1) >> reach; at++) {
        entry.key = key_of(device, reach, at);
        bool known = enter ? (table_put(&entry, &found), found.kind != 0) : table_get(HELD_TABLE, entry.key, &found);
        count += !known;
    }
    return count;
}

/* Add to the tables that are counted: what is charged for them. False: it does not fit, and they are not counted. */
static bool count_tables(int device, uint64_t more)
{
    struct entry counted_now = {.kind = TABLES_COUNTED, .key = (unsigned)device, .device = device}, previous;
    if (!table_get(TABLES_COUNTED, counted_now.key, &previous))
        table_put(&counted_now, &previous);
    if (!table_add(TABLES_COUNTED, counted_now.key, (int64_t)more, &counted_now))
        return false;
    uint64_t bytes = charged_for(counted_now.bytes) - charged_for(counted_now.bytes - more);
    if (bytes == 0)
        return true;
    if (charge(device, bytes) != RESULT_OK) {
        table_add(TABLES_COUNTED, counted_now.key, -(int64_t)more, &counted_now);
        return false;
    }
    unseen_add(device, (int64_t)bytes);
    return true;
}

/* Two threads that need a table at once may both be charged for it. */
static result_t take_tables(int device, enum reach reach, uint64_t start, uint64_t bytes)
{
    if (!counted(device) || bytes == 0 || start >= ADDRESSES || bytes > ADDRESSES - start)
        return RESULT_OK; /* the driver refuses it */
    uint64_t news = unknown_tables(device, reach, start, bytes, false);
    if (news > 0 && !count_tables(device, news))
        return ERROR(OUT_OF_MEMORY);
    if (news > 0)
        unknown_tables(device, reach, start, bytes, true);
    return RESULT_OK;
}

/* ------------------------------------------------------------------------------------------------- blocks, mapped */

CUresult map_in_tables(CUresult (*real)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long),
                       CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                       unsigned long long flags)
{
    CUresult refused = take_tables(device_current(), OF_BLOCKS, address, bytes);
    return refused != CUDA_SUCCESS ? refused : map_block(real, address, bytes, offset, handle, flags);
}

/* A device that is let at a block of another one needs tables of its own. */
CUresult set_access(CUresult (*real)(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t), CUdeviceptr address,
                    size_t bytes, const CUmemAccessDesc *access, size_t count)
{
    CUresult refused = CUDA_SUCCESS;
    for (size_t i = 0; access != NULL && i < count && refused == CUDA_SUCCESS; i++)
        if (access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE && access[i].flags != 0)
            refused = take_tables(device_of(access[i].location.id), OF_BLOCKS, address, bytes);
    return refused != CUDA_SUCCESS ? refused : real(address, bytes, access, count);
}

/* ----------------------------------------------------------------------------------------------- memory of the host */

/* It is mapped on each device that the process has a context on. */
static bool is_context_on(const struct entry *entry, const void *device)
{
    return entry->kind == CONTEXT_BYTES && entry->device == *(const int *)device;
}

static bool has_context(int device)
{
    struct entry none;
    return device == device_current() || table_find(is_context_on, &device, &none);
}

/* Charged before, as what the driver refuses may have got its tables. */
CUresult register_host(CUresult (*real)(void *, size_t, unsigned), void *memory, size_t bytes, unsigned flags)
{
    int devices = tenant_region() == NULL ? 0 : (int)tenant_grant->device_count;
    CUresult refused = CUDA_SUCCESS;
    for (int device = 0; device < devices && refused == CUDA_SUCCESS; device++)
        if (has_context(device))
            refused = take_tables(device, OF_HOST, (uintptr_t)memory, bytes);
    return refused != CUDA_SUCCESS ? refused : real(memory, bytes, flags);
}
