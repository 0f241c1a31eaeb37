/* Reads images of device code (image.h). What is not understood counts as nothing: the driver's figure tells after the
 * load. */
#include "image.h"

#include <ctype.h>
#include <elf.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Magic numbers, and where a fat binary has its size: fatbinary_section.h and fatBinaryCtl.h of the CUDA toolkit. */
#define WRAPPER_MAGIC UINT32_C(0x466243b1)
#define FAT_MAGIC     UINT32_C(0xba55ed50)

struct wrapper {
    uint32_t magic, version;
    const void *data;
};

struct fat {
    uint32_t magic;
    uint16_t version, header;
    uint64_t size;
};

static uint64_t product(uint64_t one, uint64_t other)
{
    uint64_t result;
    return __builtin_mul_overflow(one, other, &result) ? UINT64_MAX : result;
}

static uint64_t sum(uint64_t one, uint64_t other)
{
    uint64_t result;
    return __builtin_add_overflow(one, other, &result) ? UINT64_MAX : result;
}

/* ------------------------------------------------------------------------------------------------------------- ELF */

/* Arrays are in .nv.global and .nv.global.init, whose sizes are those on the device. */
static struct image read_elf(const char *data, uint64_t size)
{
    Elf64_Ehdr head;
    memcpy(&head, data, sizeof head);
    struct image image = {.bytes = sum(head.e_shoff, (uint64_t)head.e_shnum * sizeof(Elf64_Shdr))};
    if (head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_shentsize != sizeof(Elf64_Shdr) ||
        head.e_shstrndx >= head.e_shnum || image.bytes > size)
        return image;
    const char *sections = data + head.e_shoff;
    Elf64_Shdr names, section;
    memcpy(&names, sections + head.e_shstrndx * sizeof names, sizeof names);
    for (unsigned i = 0; i < head.e_shnum; i++) {
        memcpy(&section, sections + i * sizeof section, sizeof section);
        if (section.sh_name < names.sh_size && sum(names.sh_offset, names.sh_size) <= size &&
            strncmp(data + names.sh_offset + section.sh_name, ".nv.global", strlen(".nv.global")) == 0)
            image.globals = sum(image.globals, section.sh_size);
    }
    return image;
}

/* ------------------------------------------------------------------------------------------------------------- PTX */

static const char *skip_space(const char *at)
{
    for (;;) {
        const char *end = at + strspn(at, " \t\r\n");
        if (strncmp(end, "//", 2) == 0)
            end += strcspn(end, "\n");
        else if (strncmp(end, "/*", 2) == 0)
            end = strstr(end, "*/") != NULL ? strstr(end, "*/") + 2 : end + strlen(end);
        if (end == at)
            return at;
        at = end;
    }
}

/* What follows a dot: a word. */
static size_t word(const char *at)
{
    size_t length = 1;
    while (isalnum((unsigned char)at[length]) || at[length] == '_')
        length++;
    return length;
}

/* Bytes of a type such as .b8, .f16x2 or .u64: its first number, doubled for x2; 0: not a type. */
static uint64_t type_bytes(const char *at, size_t length)
{
    size_t digits = 1;
    while (digits < length && !isdigit((unsigned char)at[digits]))
        digits++;
    uint64_t bits = digits < length && strchr("bsuf", at[1]) != NULL ? strtoull(at + digits, NULL, 10) : 0;
    bool pair = length > 2 && at[length - 2] == 'x';
    return bits * (pair ? 2 : 1) / 8;
}

/* A product of numbers, as an array's size may be written. 0: it is something else. */
static uint64_t size_of_array(const char **at)
{
    uint64_t elements = 1;
    do {
        char *end;
        *at = skip_space(*at + 1);
        elements = product(elements, strtoull(*at, &end, 0));
        *at = skip_space(end + strspn(end, "U"));
    } while (**at == '*');
    bool closed = **at == ']';
    *at += closed;
    return closed ? elements : 0;
}

/* The arrays of one declaration, from after its .global to its end: bytes. */
static uint64_t declared(const char **at)
{
    uint64_t element = 0, vector = 1, bytes = 0, elements = 0;
    for (*at = skip_space(*at); **at != ';' && **at != '=' && **at != '\0'; *at = skip_space(*at)) {
        size_t length = **at == '.' ? word(*at) : 1;
        if (**at == '.' && (*at)[1] == 'v')
            vector = strtoull(*at + 2, NULL, 10);
        else if (**at == '.' && element == 0)
            element = type_bytes(*at, length);
        if (**at == '[') {
            elements = product(elements == 0 ? 1 : elements, size_of_array(at));
            continue;
        }
        if (**at == ',') {
            bytes = sum(bytes, product(elements == 0 ? 1 : elements, product(element, vector)));
            elements = 0;
        }
        *at += length;
    }
    return sum(bytes, product(elements == 0 ? 1 : elements, product(element, vector)));
}

static struct image read_ptx(const char *text)
{
    static const char name[] = ".global";
    struct image image = {.bytes = strlen(text)};
    bool outside = false; /* declared .extern: another image has it; or where a parameter points to */
    char before = '\n';
    for (const char *at = skip_space(text); *at != '\0';) {
        if (strncmp(at, ".extern", 7) == 0 || strncmp(at, ".ptr", 4) == 0 || *at == ';')
            outside = *at == '.';
        if (strncmp(at, name, strlen(name)) == 0 && word(at) == strlen(name) && !isalnum((unsigned char)before)) {
            at += strlen(name);
            uint64_t bytes = declared(&at);
            image.globals = sum(image.globals, outside ? 0 : bytes);
            continue;
        }
        before = *at;
        const char *next = skip_space(++at);
        before = next == at ? before : ' ';
        at = next;
    }
    return image;
}

/* ------------------------------------------------------------------------------------------------------------------ */

static struct image read_sized(const void *data, uint64_t size)
{
    uint32_t magic;
    memcpy(&magic, data, sizeof magic);
    if (magic == WRAPPER_MAGIC && size == UINT64_MAX) {
        data = ((const struct wrapper *)data)->data;
        memcpy(&magic, data, sizeof magic);
    }
    if (magic == FAT_MAGIC) {
        struct fat fat;
        memcpy(&fat, data, sizeof fat);
        return (struct image){.bytes = sum(fat.header, fat.size)};
    }
    return memcmp(&magic, ELFMAG, SELFMAG) == 0 ? read_elf(data, size) : read_ptx(data);
}

struct image image_read(const void *data)
{
    return data == NULL ? (struct image){0} : read_sized(data, UINT64_MAX);
}

struct image image_of_file(const char *path)
{
    struct image image = {0};
    FILE *file = path != NULL ? fopen(path, "re") : NULL;
    if (file == NULL)
        return image;
    long size = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    char *data = size > (long)sizeof(Elf64_Ehdr) ? calloc((size_t)size + 1, 1) : NULL;
    if (data != NULL && fseek(file, 0, SEEK_SET) == 0 && fread(data, 1, (size_t)size, file) == (size_t)size)
        image = read_sized(data, (uint64_t)size);
    free(data);
    fclose(file);
    return image;
}
