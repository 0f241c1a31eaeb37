/* The book of memory: all layers of Ascend's runtime end here, and each call names its device. What is asked for is
 * charged before the driver is called, in whole pages, and given back with the last use of it.
 *
 * These bodies are called from within the runtime, which may hold its locks. So they do not call it.
 */
#include "book.h"

#include "bodies.h"
#include "mark.h"

#include "../shared/arguments.h"
#include "../shared/charge.h"
#include "../shared/physical.h"

#include "../core/fault.h"
#include "../core/tenant.h"

/* Charge bytes that the driver is about to be asked for, and note it in the mark. Without a device they are the host's.
 */
static drvError_t take(int device, uint64_t bytes)
{
    mark_seen();
    result_t answer = device == DEVICE_NONE || FAULT(hal_uncharged) ? RESULT_OK : charge(device, bytes);
    if (answer == RESULT_OK)
        return DRV_ERROR_NONE;
    mark_refused();
    return answer == ERROR(OUT_OF_MEMORY) ? DRV_ERROR_OUT_OF_MEMORY : DRV_ERROR_NOT_SUPPORT;
}

/* ----------------------------------------------------------------------------------------------- memory by pointer */

drvError_t book_allocation(typeof(&halMemAlloc) real, void **pointer, unsigned long long bytes, unsigned long long flag)
{
    int device = HAL_KIND(flag) == HAL_KIND_HOST ? DEVICE_NONE : device_of_hal(HAL_DEVICE(flag));
    uint64_t taken_bytes = mark_taken_bytes(bytes);
    drvError_t answer = take(device, taken_bytes);
    if (answer != DRV_ERROR_NONE)
        return answer;
    void *made = NULL; /* in the program's memory another thread could replace it */
    answer = real(pointer == NULL ? NULL : &made, bytes, flag);
    settle((result_t)answer, HELD_POINTER, (uintptr_t)made, device, taken_bytes, NULL);
    if (answer == DRV_ERROR_NONE)
        *pointer = made;
    return answer;
}

/* Its entry is taken out before the driver is called, because the driver may reuse the address at once. */
drvError_t book_free(typeof(&halMemFree) real, void *pointer)
{
    struct entry entry, shared_entry, previous;
    bool is_known = table_take(HELD_POINTER, (uintptr_t)pointer, &entry);
    bool is_shared = is_known && table_take(HELD_SHARED, (uintptr_t)pointer, &shared_entry);
    drvError_t answer = real(pointer);
    if (answer != DRV_ERROR_NONE && is_known)
        table_put(&entry, &previous);
    if (answer != DRV_ERROR_NONE && is_shared)
        table_put(&shared_entry, &previous);
    if (answer != DRV_ERROR_NONE || !is_known)
        return answer;
    if (is_shared && !FAULT(shared_memory_refunded)) {
        leave_charged(entry.device, entry.bytes);
        mark_left(entry.device, entry.bytes);
    } else if (!FAULT(hal_frees_unseen)) {
        give_back(&entry);
    }
    return answer;
}

static bool has_address(const struct entry *entry, const void *address)
{
    return entry->kind == HELD_POINTER && (uint64_t)(uintptr_t)address - entry->key < entry->bytes;
}

bool book_note_shared(const void *pointer)
{
    struct entry entry, previous = {0};
    if (!table_find(has_address, pointer, &entry))
        return false;
    mark_exports();
    entry.kind = HELD_SHARED;
    if (table_put(&entry, &previous) && previous.kind == 0)
        report_shared(entry.device, (int64_t)entry.bytes);
    return previous.kind == 0;
}

void book_forget_shared(const void *pointer)
{
    struct entry entry, shared_entry;
    if (table_find(has_address, pointer, &entry) && table_take(HELD_SHARED, entry.key, &shared_entry))
        report_shared(shared_entry.device, -(int64_t)shared_entry.bytes);
}

/* ----------------------------------------------------------------------------------------------- physical memory */

static uint64_t page_bytes_of(const struct drv_mem_prop *property)
{
    switch (property->page_type) {
    case MEM_NORMAL_PAGE_TYPE: return PAGE_BYTES_NORMAL;
    case MEM_HUGE_PAGE_TYPE: return PAGE_BYTES_HUGE;
    default: return PAGE_BYTES_GIANT;
    }
}

static int device_of_property(const struct drv_mem_prop *property)
{
    return property == NULL || property->side == MEM_HOST_SIDE ? DEVICE_NONE : device_of_hal(property->device);
}

drvError_t book_physical(typeof(&halMemCreate) real, drv_mem_handle_t **handle, size_t bytes,
                         const struct drv_mem_prop *property, uint64_t flags)
{
    COPY_ARGUMENT(property);
    int device = FAULT_VALUE(physical_uncharged, device_of_property(property), DEVICE_NONE);
    uint64_t taken_bytes = property == NULL ? bytes : whole_pages(bytes, page_bytes_of(property));
    drvError_t answer = take(device, taken_bytes);
    if (answer != DRV_ERROR_NONE)
        return answer;
    drv_mem_handle_t *made = NULL;
    struct vmm_block *block = malloc(sizeof *block);
    answer = block == NULL ? DRV_ERROR_OUT_OF_MEMORY : real(handle == NULL ? NULL : &made, bytes, property, flags);
    if (answer != DRV_ERROR_NONE) {
        refund(device, counted(device) ? taken_bytes : 0);
        free(block);
        return answer;
    }
    *block = (struct vmm_block){.device = device, .bytes = taken_bytes, .reference_count = 1};
    add_handle((uintptr_t)made, block);
    *handle = made;
    return answer;
}

static atomic_bool has_retained; /* set once, never cleared */

void book_note_retained(void)
{
    mark_exports();
    atomic_store(&has_retained, true);
}

/* Drop a reference to a block after the driver did. One whose handle was retained may have more of them: unless the
 * card has it back, its handle is known further. */
static void drop(struct vmm_block *block, drv_mem_handle_t *handle)
{
    struct vmm_block copy = {.device = DEVICE_NONE};
    bool may_be_retained = block != NULL && atomic_load(&has_retained);
    if (may_be_retained) {
        note_exported(block);
        copy = (struct vmm_block){
            .device = block->device, .bytes = block->bytes, .reference_count = 1, .is_exported = true};
    } else if (block != NULL) {
        copy.device = block->device;
    }
    uint64_t left_bytes = drop_after_use(block, (struct card_use){0});
    mark_left(copy.device, left_bytes);
    struct vmm_block *kept = may_be_retained && left_bytes > 0 ? malloc(sizeof *kept) : NULL;
    if (kept != NULL) {
        memcpy(kept, &copy, sizeof copy);
        add_handle((uintptr_t)handle, kept);
    }
}

drvError_t book_release(typeof(&halMemRelease) real, drv_mem_handle_t *handle)
{
    struct vmm_block *block = change_handle_count((uintptr_t)handle, -1);
    drvError_t answer = real(handle);
    if (answer == DRV_ERROR_NONE)
        drop(block, handle);
    else if (block != NULL && change_handle_count((uintptr_t)handle, 1) == NULL)
        add_handle((uintptr_t)handle, block);
    return answer;
}

drvError_t book_mapping(typeof(&halMemMap) real, void *address, size_t bytes, size_t offset, drv_mem_handle_t *handle,
                        uint64_t flags)
{
    struct vmm_block *block = block_of_handle((uintptr_t)handle);
    struct entry previous = {0},
                 entry = {
                     .key = (uintptr_t)address, .kind = HELD_MAPPING, .bytes = bytes, .owner = handle, .link = block};
    drvError_t answer = real(address, bytes, offset, handle, flags);
    if (answer != DRV_ERROR_NONE)
        drop_reference(block);
    else if (block != NULL && table_put(&entry, &previous) && previous.kind != 0)
        drop_reference(previous.link);
    return answer;
}

drvError_t book_unmapping(typeof(&halMemUnmap) real, void *address)
{
    struct entry mapping, previous;
    bool is_known = table_take(HELD_MAPPING, (uintptr_t)address, &mapping);
    drvError_t answer = real(address);
    if (is_known && answer != DRV_ERROR_NONE)
        table_put(&mapping, &previous);
    else if (is_known)
        drop(mapping.link, mapping.owner);
    return answer;
}

/* ------------------------------------------------------------------------------------------ beyond this process */

/* Noted before another process can import it. */
drvError_t book_export(typeof(&halMemExportToShareableHandleV2) real, drv_mem_handle_t *handle, uint32_t type,
                       uint64_t flags, void *shared)
{
    struct vmm_block *block = block_of_handle((uintptr_t)handle);
    mark_exports();
    note_exported(block);
    drvError_t answer = real(handle, type, flags, shared);
    drop_reference(block);
    return answer;
}

/* Who created it is charged. */
drvError_t book_import(typeof(&halMemImportFromShareableHandleV2) real, uint32_t type, void *shared, uint32_t device,
                       drv_mem_handle_t **handle)
{
    drv_mem_handle_t *made = NULL;
    drvError_t answer = real(type, shared, device, handle == NULL ? NULL : &made);
    struct vmm_block *block = answer == DRV_ERROR_NONE ? malloc(sizeof *block) : NULL;
    if (answer == DRV_ERROR_NONE)
        *handle = made;
    if (block != NULL) {
        *block = (struct vmm_block){.device = DEVICE_NONE, .reference_count = 1, .is_imported = true};
        add_handle((uintptr_t)made, block);
        report_opened(1);
    }
    return answer;
}
