/* The faults that a rack orders: calls that are missing, fail, hang or answer noise, and cards that vanish. */
#include "faults.h"

#include <elf.h>
#include <errno.h>
#include <fnmatch.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static struct rack *loaded_under; /* set by the constructor; its faults count until the library is opened */

static const char *const words[] = {"error", "hang", "garbage", "missing", "vanish"};

static bool does(const struct rack_section *section, const char *verb)
{
    const char *text = rack_text(section, "does", "");
    size_t length = strcspn(text, " ");
    return !strcmp(section->kind, "fault") && strlen(verb) == length && !strncmp(text, verb, length);
}

static bool concerns(const struct rack_section *section, const char *call)
{
    return !fnmatch(rack_text(section, "call", ""), call, 0) &&
           !strcmp(rack_text(section, "vendor", fake_vendor), fake_vendor);
}

/* dlsym does not find a symbol whose value in the dynamic symbol table is zero. So the library looks as if it had
 * never had the function. */
static int hide_in(struct dl_phdr_info *object, size_t size, void *argument)
{
    (void)size;
    const struct rack *rack = argument;
    const ElfW(Dyn) *dynamic = NULL;
    bool is_own = false;
    for (unsigned i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &object->dlpi_phdr[i];
        uintptr_t start = object->dlpi_addr + header->p_vaddr;
        if (header->p_type == PT_DYNAMIC)
            dynamic = (const ElfW(Dyn) *)start;
        if (header->p_type == PT_LOAD && (uintptr_t)fake_vendor - start < header->p_memsz)
            is_own = true;
    }
    if (!is_own || !dynamic)
        return 0;
    ElfW(Sym) *symbols = NULL;
    const char *names = NULL;
    const uint32_t *hash = NULL; /* buckets, then as many chains as there are symbols */
    for (; dynamic->d_tag != DT_NULL; dynamic++)
        if (dynamic->d_tag == DT_SYMTAB)
            symbols = (ElfW(Sym) *)dynamic->d_un.d_ptr;
        else if (dynamic->d_tag == DT_STRTAB)
            names = (const char *)dynamic->d_un.d_ptr;
        else if (dynamic->d_tag == DT_HASH)
            hash = (const uint32_t *)dynamic->d_un.d_ptr;
    if (!symbols || !names || !hash)
        return 1;
    uintptr_t page = (uintptr_t)symbols & -(uintptr_t)sysconf(_SC_PAGESIZE);
    size_t length = (uintptr_t)(symbols + hash[1]) - page;
    if (mprotect((void *)page, length, PROT_READ | PROT_WRITE))
        return 1;
    for (uint32_t symbol = 1; symbol < hash[1]; symbol++)
        for (unsigned i = 0; i < rack->section_count; i++)
            if (does(&rack->sections[i], "missing") && concerns(&rack->sections[i], names + symbols[symbol].st_name))
                symbols[symbol].st_value = 0;
    mprotect((void *)page, length, PROT_READ);
    return 1;
}

__attribute__((constructor)) static void hide_missing(void)
{
    loaded_under = rack_open();
    for (unsigned i = 0; loaded_under && i < loaded_under->section_count; i++)
        if (does(&loaded_under->sections[i], "missing")) {
            dl_iterate_phdr(hide_in, loaded_under);
            break;
        }
}

static void check(struct rack *rack, const struct rack_section *section)
{
    if (!rack_text(section, "call", NULL))
        rack_fault(rack, section, "call", "the name of a library call, or a pattern");
    for (unsigned i = 0; i < sizeof words / sizeof *words; i++)
        if (does(section, words[i]))
            return;
    rack_fault(rack, section, "does", "error CODE, hang [TIME], garbage, missing or vanish [COUNT]");
}

bool faults_sound(struct rack *rack)
{
    for (unsigned i = 0; i < rack->section_count; i++)
        if (!strcmp(rack->sections[i].kind, "fault"))
            check(rack, &rack->sections[i]);
    return !rack->fault_count;
}

bool faults_spare(const struct fake_card *card)
{
    struct fake_cards *opened = fake_cards();
    struct rack *rack = opened ? opened->rack : NULL;
    for (unsigned i = 0; rack && i < rack->section_count; i++) {
        const struct rack_section *section = &rack->sections[i];
        unsigned count = 2;
        if (!does(section, "vanish") || rack_number(rack, section, "device", RACK_COUNT, 0) != card->position)
            continue;
        sscanf(rack_text(section, "does", ""), "vanish %u", &count);
        fake_lock();
        bool is_gone = *fake_calls(i) >= count;
        fake_unlock();
        if (is_gone)
            return false;
    }
    return rack;
}

static void hang(const char *does)
{
    double seconds = 1e9;
    char unit[3] = "s";
    sscanf(does, "hang %lf %2s", &seconds, unit);
    if (!strcmp(unit, "ms"))
        seconds /= 1e3;
    struct timespec remaining = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&remaining, &remaining) && errno == EINTR)
        ;
}

bool faults_answer(const char *call, const struct fake_card *card, void *out, uint64_t size, int *code)
{
    struct fake_cards *opened = fake_cards();
    struct rack *rack = opened ? opened->rack : loaded_under;
    for (unsigned i = 0; rack && i < rack->section_count; i++) {
        const struct rack_section *section = &rack->sections[i];
        if (strcmp(section->kind, "fault") || !concerns(section, call))
            continue;
        if (rack_text(section, "device", NULL) && (card || !does(section, "vanish")) &&
            (!card || rack_number(rack, section, "device", RACK_COUNT, 0) != card->position))
            continue;
        *code = 0;
        if (does(section, "vanish") && opened) {
            fake_lock();
            ++*fake_calls(i);
            fake_unlock();
        } else if (does(section, "hang"))
            hang(rack_text(section, "does", ""));
        else if (does(section, "error") && sscanf(rack_text(section, "does", ""), "error %i", code) == 1)
            return true;
        else if (does(section, "garbage")) {
            if (out)
                memset(out, 0xa5, size); /* no text, no length, no zero */
            return true;
        }
    }
    return false;
}
