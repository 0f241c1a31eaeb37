/* Kernels: their names and durations. The runtimes' own copies and fills are done here.
 *
 * A packet names a kernel by the address of its descriptor. The HSA runtime's loader knows which code object is at that
 * address, and the object's symbols have the name. No other GPU code is run.
 */
#include "kfd.h"

#include <dlfcn.h>
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMES   256u
#define RUNTIME "__amd_rocclr_" /* HIP's own kernels, which it compiles for each card */

static struct name { /* a query of the loader takes 50 us */
    uint64_t object;
    char text[sizeof((struct kernel_call *)0)->name];
} names[NAMES];

/* Lock held. */
void kernel_forget(void)
{
    memset(names, 0, sizeof names);
}

/* The tables of a loaded code object, whose first segment has its headers. The file it was loaded from may not exist
 * any more. */
struct symbols {
    const Elf64_Sym *table;
    const char *names;
    const uint32_t *hash; /* number of buckets, then number of symbols */
};

static struct symbols symbols_of(const char *base)
{
    struct symbols symbols = {NULL, NULL, NULL};
    const Elf64_Ehdr *header = (const void *)base;
    const Elf64_Phdr *segments = (const void *)(base + header->e_phoff);
    const Elf64_Dyn *dynamic = NULL;
    for (unsigned i = 0; !memcmp(base, ELFMAG, SELFMAG) && i < header->e_phnum; i++)
        if (segments[i].p_type == PT_DYNAMIC)
            dynamic = (const void *)(base + segments[i].p_vaddr);
    for (; dynamic && dynamic->d_tag != DT_NULL; dynamic++) {
        const char *address = base + dynamic->d_un.d_ptr;
        symbols.table = dynamic->d_tag == DT_SYMTAB ? (const void *)address : symbols.table;
        symbols.names = dynamic->d_tag == DT_STRTAB ? address : symbols.names;
        symbols.hash = dynamic->d_tag == DT_HASH ? (const void *)address : symbols.hash;
    }
    return symbols;
}

static const char *symbol_at(const char *base, uint64_t object)
{
    struct symbols symbols = symbols_of(base);
    for (uint32_t i = 0; symbols.table && symbols.names && symbols.hash && i < symbols.hash[1]; i++)
        if ((uintptr_t)base + symbols.table[i].st_value == object)
            return symbols.names + symbols.table[i].st_name;
    return NULL;
}

static const char *name_in(const hsa_ven_amd_loader_segment_descriptor_t *segments, uint64_t count, uint64_t object)
{
    for (uint64_t i = 0; i < count; i++) {
        uint64_t start = (uintptr_t)segments[i].segment_base;
        if (object >= start && object < start + segments[i].segment_size)
            return symbol_at(segments[i].segment_base, object);
    }
    return NULL;
}

/* Through the loaded runtime: this library is below it, and cannot link to it. */
static void ask_loader(uint64_t object, char *name, size_t capacity)
{
    int (*table_of)(uint16_t, uint16_t, size_t, void *) = NULL;
    void *runtime = dlopen("libhsa-runtime64.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (runtime)
        *(void **)&table_of = dlsym(runtime, "hsa_system_get_major_extension_table");
    hsa_ven_amd_loader_1_00_pfn_t loader;
    uint64_t count = 0;
    *name = '\0';
    if (!table_of || table_of(HSA_EXTENSION_AMD_LOADER, 1, sizeof loader, &loader) ||
        loader.query_segment_descriptors(NULL, &count))
        return;
    hsa_ven_amd_loader_segment_descriptor_t *segments = calloc(count + 1, sizeof *segments);
    if (segments && !loader.query_segment_descriptors(segments, &count)) {
        const char *symbol = name_in(segments, count, object);
        if (symbol)
            snprintf(name, capacity, "%.*s", (int)strcspn(symbol, "."), symbol);
    }
    free(segments);
}

static void name_of(uint64_t object, char *name, size_t capacity)
{
    struct name *cached = &names[(object >> 6) % NAMES];
    pthread_mutex_lock(&kfd.lock);
    bool is_cached = cached->object == object;
    if (is_cached)
        memcpy(name, cached->text, capacity);
    pthread_mutex_unlock(&kfd.lock);
    if (is_cached)
        return;
    ask_loader(object, name, capacity);
    pthread_mutex_lock(&kfd.lock);
    cached->object = object;
    memcpy(cached->text, name, capacity);
    pthread_mutex_unlock(&kfd.lock);
}

static uint64_t word(const void *arguments, unsigned index)
{
    return ((const uint64_t *)arguments)[index];
}

#define DEFAULT_TIME 2000 /* ns; as of CUDA's kernels that the rack does not name */

void kernel_look_up(const hsa_kernel_dispatch_packet_t *packet, const struct nvidia *rack, struct kernel_call *call)
{
    *call = (struct kernel_call){.is_runtime_kernel = true};
    /* The HSA runtime's own copy and fill are in host memory. Its loader holds its lock while it copies with them,
     * so that a query would deadlock. */
    if (memory_is_host(packet->kernel_object))
        return;
    name_of(packet->kernel_object, call->name, sizeof call->name);
    call->is_runtime_kernel = !strncmp(call->name, RUNTIME, strlen(RUNTIME));
    call->card_ns = call->is_runtime_kernel ? 0 : DEFAULT_TIME;
    for (unsigned i = 0; i < rack->kernel_count; i++)
        if (!strcmp(rack->kernels[i].name, call->name))
            call->card_ns =
                rack->kernels[i].base_ns +
                (rack->kernels[i].ns_per_arg0 ? rack->kernels[i].ns_per_arg0 * word(packet->kernarg_address, 0) : 0);
}

/* Arguments: source, target, their offsets, words plus one, remaining bytes. */
static void copy_buffer(const void *arguments)
{
    memmove(memory_at(word(arguments, 1) + word(arguments, 3)), memory_at(word(arguments, 0) + word(arguments, 2)),
            (word(arguments, 4) - 1) * 4 + (uint32_t)word(arguments, 5));
}

/* Arguments: source and target; pitch, slice and start of each; width, height, depth, and their unit in bytes. */
static void copy_box(const void *arguments, bool is_aligned)
{
    const uint64_t *source_shape = (const uint64_t *)arguments + 4, *target_shape = source_shape + 4,
                   *box_shape = target_shape + 4;
    uint64_t unit_bytes = is_aligned ? box_shape[3] : 1;
    for (uint64_t z = 0; z < box_shape[2]; z++)
        for (uint64_t y = 0; y < box_shape[1]; y++)
            memmove(memory_at(word(arguments, 1) +
                              (target_shape[2] + z * target_shape[1] + y * target_shape[0]) * unit_bytes),
                    memory_at(word(arguments, 0) +
                              (source_shape[2] + z * source_shape[1] + y * source_shape[0]) * unit_bytes),
                    box_shape[0] * unit_bytes);
}

/* Arguments: targets for elements of 1, 2, 4 and 8 bytes, of which one is not NULL; pattern; its length in elements;
 * offset; then a count, or width, height and pitch. */
static void fill(const void *arguments, bool is_1d)
{
    const char *pattern = memory_at(word(arguments, 4));
    for (unsigned log_element_bytes = 0; log_element_bytes < 4; log_element_bytes++) {
        size_t pattern_bytes = (uint32_t)word(arguments, 5) * (UINT64_C(1) << log_element_bytes);
        if (!word(arguments, log_element_bytes))
            continue;
        char *start = memory_at(word(arguments, log_element_bytes) + (word(arguments, 6) << log_element_bytes));
        for (uint64_t y = 0; y < (is_1d ? 1 : word(arguments, 8)); y++)
            for (uint64_t i = 0; i < word(arguments, 7); i++)
                memcpy(start + (is_1d ? 0 : y * word(arguments, 9) << log_element_bytes) + i * pattern_bytes, pattern,
                       pattern_bytes);
    }
}

/* Arguments: a target of four bytes or one of eight, and the value. */
static void write_word(const void *arguments)
{
    for (unsigned target = 0; target < 2; target++)
        if (word(arguments, target))
            memcpy(memory_at(word(arguments, target)), (const uint64_t *)arguments + 2, 4u << target);
}

/* The HSA runtime's shaders are recognised by their arguments: a copy has pairs of addresses in equal steps. */
static void run_shader(const void *arguments)
{
    unsigned step_count = 0;
    for (unsigned i = 1;
         i <= 4 && word(arguments, 2 * i) - word(arguments, 0) == word(arguments, 2 * i + 1) - word(arguments, 1); i++)
        step_count = i;
    if (step_count == 4 || step_count == 2) {
        memmove(memory_at(word(arguments, 1)), memory_at(word(arguments, 0)),
                word(arguments, 2 * step_count) - word(arguments, 0));
        return;
    }
    uint32_t *start = memory_at(word(arguments, 0));
    for (uint64_t i = 0; i < (word(arguments, 2) - word(arguments, 0)) / 4; i++)
        start[i] = (uint32_t)word(arguments, 3);
}

void kernel_run(const hsa_kernel_dispatch_packet_t *packet, const struct kernel_call *call)
{
    const void *arguments = packet->kernarg_address;
    const char *name = call->name + strlen(RUNTIME);
    if (!*call->name)
        run_shader(arguments);
    else if (!strcmp(name, "copyBuffer"))
        copy_buffer(arguments);
    else if (!strcmp(name, "copyBufferRect") || !strcmp(name, "copyBufferRectAligned"))
        copy_box(arguments, !strcmp(name, "copyBufferRectAligned"));
    else if (!strcmp(name, "fillBufferAligned") || !strcmp(name, "fillBufferAligned2D"))
        fill(arguments, !strcmp(name, "fillBufferAligned"));
    else if (!strcmp(name, "streamOpsWrite"))
        write_word(arguments);
    else if (strcmp(name, "gwsInit"))
        fprintf(stderr, "simulated card: kernel %s does nothing here\n", call->name);
}
